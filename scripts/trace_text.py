#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of a trace as text: one line per lane, time to the right.

    scripts/trace_text.py TRACE [INSTANCE] [COLUMNS]

TRACE is what --trace writes (sluice train, sluice simulate, bench-overlap). The step goes from the
decision of the instance before to that of INSTANCE (default: the last one that has both). A letter
says what a lane did for most of a column: F forward, B backward, H head, g gradient, u upload, d
download, U update, S update on a prediction, r read, w write; '.': it worked, for less than a third
of the column; ' ': it waited or had nothing to do.
"""
import json
import sys

LETTERS = {"embed": "F", "forward": "F", "head": "H", "backward": "B", "gradient": "g", "upload": "u",
           "download": "d", "update": "U", "fetch": "r", "evict": "w", "decide": "D", "input": "i",
           "predict": "P"}


def letter(event, instance):
    name = event["name"].split()[0]
    if name.startswith("head"):
        return "H"
    if name.startswith("embed"):
        return "B" if "backward" in name else "F"
    return LETTERS.get(name, name[0])


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    events = json.load(open(sys.argv[1]))["traceEvents"]
    lane_of = {e["tid"]: e["args"]["name"].split()[0] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    decided = {e["args"]["instance"]: e["ts"] + e["dur"] for e in slices
               if e["name"].startswith("decide")}
    instance = int(sys.argv[2]) if len(sys.argv) > 2 else max(decided)
    columns = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    start, end = decided[instance - 1], decided[instance]
    width = (end - start) / columns
    rows, busy = {}, {}
    for e in slices:
        lane = lane_of[e["tid"]]
        spent = rows.setdefault(lane, [{} for _ in range(columns)])
        first = max(0, int((e["ts"] - start) / width))
        last = min(columns - 1, int((e["ts"] + e["dur"] - start) / width))
        for column in range(first, last + 1):
            left = start + column * width
            inside = min(left + width, e["ts"] + e["dur"]) - max(left, e["ts"])
            if inside > 0:
                mark = letter(e, instance)
                spent[column][mark] = spent[column].get(mark, 0) + inside
    print(f"{(end - start) / 1e6:.3f} s from decision to decision; a column is {width / 1e3:.1f} ms")
    for lane in sorted(rows, key=lambda l: min(t for t in lane_of if lane_of[t] == l)):
        line = ""
        for spent in rows[lane]:
            total = sum(spent.values())
            line += " " if not spent else max(spent, key=spent.get) if total > width / 3 else "."
        if line.strip():
            print(f"{lane:<11}|{line}|")


if __name__ == "__main__":
    main()
