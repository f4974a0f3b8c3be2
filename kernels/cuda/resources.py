#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, static shared memory and spills of every CUDA kernel, as nvcc -Xptxas -v reports them.

    kernels/cuda/resources.py [--write]

Prints a Markdown table; --write puts it between the markers of docs/cuda-kernels.md. Exit code 1
where any kernel spills registers or uses local memory on any target.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGETS = ["80", "89", "90"]
BEGIN, END = "<!-- resources: begin -->", "<!-- resources: end -->"
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def kernel_files():
    folder = os.path.join(ROOT, "kernels", "cuda")
    return sorted(name for name in os.listdir(folder) if name.endswith(".cu"))


def report(name, target):
    """nvcc's report for one file and target: {mangled name: (registers, shared, local bytes)}."""
    exact = ["-fmad=false"] if name in ("optim.cu", "gradient.cu") else []
    with tempfile.TemporaryDirectory() as folder:
        command = ["nvcc", "-std=c++17", "-O3", "-cubin", f"-arch=sm_{target}", "-Xptxas", "-v",
                   "-I", ROOT, *exact, "-o", os.path.join(folder, "out.cubin"),
                   os.path.join(ROOT, "kernels", "cuda", name)]
        env = dict(os.environ, TMPDIR=folder)
        result = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    kernels, entry, local = {}, None, 0
    for line in result.stderr.splitlines():
        if match := ENTRY.search(line):
            entry, local = match.group(1), 0
        elif match := STACK.search(line):
            local = sum(int(x) for x in match.groups())
        elif (match := USED.search(line)) and entry:
            kernels[entry] = (int(match.group(1)), int(match.group(2) or 0), local)
            entry = None
    return kernels


def demangle(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout
    short = []
    for line in text.splitlines():
        line = line.replace("(anonymous namespace)::", "").replace("void ", "", 1)
        line = re.sub(r"(\d+)u\b", r"\1", line)
        depth, cut = 0, len(line)
        for i, char in enumerate(line): # the parameter list is the first bracket outside <>
            depth += (char == "<") - (char == ">")
            if char == "(" and depth == 0:
                cut = i
                break
        short.append(line[:cut])
    return dict(zip(names, short))


def table():
    rows, spills = [], []
    for name in kernel_files():
        reports = {target: report(name, target) for target in TARGETS}
        mangled = sorted(reports[TARGETS[0]])
        names = demangle(mangled) if mangled else {}
        for kernel in sorted(mangled, key=lambda k: names[k]):
            figures = [reports[target][kernel] for target in TARGETS]
            local = max(f[2] for f in figures)
            if local:
                spills.append(names[kernel])
            registers = " / ".join(str(f[0]) for f in figures)
            rows.append(f"| {name} | `{names[kernel]}` | {registers} | {figures[0][1]} | {local} |")
    head = ["| file | kernel | registers sm_80 / 89 / 90 | static shared bytes | spilled bytes |",
            "|---|---|---|---|---|"]
    return "\n".join(head + rows), spills


def main():
    text, spills = table()
    print(text)
    if "--write" in sys.argv[1:]:
        path = os.path.join(ROOT, "docs", "cuda-kernels.md")
        with open(path, encoding="utf-8") as file:
            page = file.read()
        before, rest = page.split(BEGIN)
        after = rest.split(END)[1]
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{before}{BEGIN}\n{text}\n{END}{after}")
    if spills:
        print("spills: " + ", ".join(spills), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
