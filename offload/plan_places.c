// SPDX-License-Identifier: Apache-2.0
/* The lowest free offset, without looking at everything that was placed before.
 *
 * Problem   A plan of thousands of micro-batches has hundreds of thousands of transient slots. To
 *           walk through all placed ones for each is quadratic: minutes.
 * Choice    A segment tree over time. A node keeps two sets of free ranges of offsets: what no
 *           placed life that *meets* its interval of time has taken, and what none that *covers* it
 *           has taken. A life consists of O(log n) nodes, and what it meets has taken no more and
 *           no less than those nodes' first sets and their ancestors' second ones lack. So an
 *           offset is raised by each of these sets in turn to the next place where the bytes fit
 *           into it, until none raises it any more: then it is free in all, and the lowest.
 *
 *                    [m, c]                       a life over moments 2 to 5 asks
 *               [m, c]      [m, c]                the c of the root and of its children
 *            [m, c] [m, c] [m, c] [m, c]          and the m of 2-3 and of 4-5
 *             0-1    2-3    4-5    6-7
 *
 *           A set is a treap of its free ranges by offset, with the longest in each subtree. Slots
 *           that lie wall to wall leave one range behind them, so sets stay small.
 * Rejected  Sweeping through time with free lists: other offsets, and more memory. One list sorted
 *           by offset that skips groups: quadratic as soon as short lives lie between long ones.
 */
#include "offload/plan_places.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/size.h"

#define NONE UINT64_MAX /* also the end of the last range: nothing limits it */

struct range {
    uint64_t start, end;    /* free */
    uint64_t longest;       /* of this one and those in its subtree */
    uint32_t priority;      /* not above its parent's */
    uint32_t before, after; /* children; 0: none */
};

struct node {
    uint32_t meets, covers; /* sets; 0: all is free */
};

struct places {
    struct node *nodes; /* of the tree over time: children of i are 2 i and 2 i + 1 */
    struct range *ranges;
    uint32_t range_count, range_capacity;
    uint32_t unused; /* list of ranges that were given back, by `after` */
    uint32_t random;
    bool out_of_memory; /* sticky */
};

/* ---- a set of free ranges ------------------------------------------------------------------- */

static void set_longest(struct range *ranges, uint32_t i)
{
    struct range *r = &ranges[i];
    r->longest = sl_max_u64(r->end - r->start,
                            sl_max_u64(ranges[r->before].longest, ranges[r->after].longest));
}

/* Returns 0, no range, where memory is out. */
static uint32_t make_range(struct places *p, uint64_t start, uint64_t end)
{
    uint32_t i = p->unused;
    if (i) {
        p->unused = p->ranges[i].after;
    } else {
        if (p->range_count == p->range_capacity) {
            uint32_t wanted = p->range_capacity ? 2 * p->range_capacity : 1024;
            struct range *grown = realloc(p->ranges, wanted * sizeof(*grown));
            if (!grown) {
                p->out_of_memory = true;
                return 0;
            }
            p->ranges = grown;
            p->range_capacity = wanted;
            if (!p->range_count)
                p->ranges[p->range_count++] = (struct range){0}; /* none: has no length */
        }
        i = p->range_count++;
    }
    p->random ^= p->random << 13; /* xorshift32 */
    p->random ^= p->random >> 17;
    p->random ^= p->random << 5;
    p->ranges[i] =
        (struct range){.start = start, .end = end, .longest = end - start, .priority = p->random};
    return i;
}

static void drop_ranges(struct places *p, uint32_t root)
{
    if (!root)
        return;
    drop_ranges(p, p->ranges[root].before);
    drop_ranges(p, p->ranges[root].after);
    p->ranges[root].after = p->unused;
    p->unused = root;
}

/* Cut a set in two: ranges that start below `at`, and the others. */
static void split(struct range *ranges, uint32_t root, uint64_t at, uint32_t *below,
                  uint32_t *others)
{
    if (!root) {
        *below = *others = 0;
    } else if (ranges[root].start < at) {
        uint32_t rest;
        split(ranges, ranges[root].after, at, &rest, others);
        ranges[root].after = rest;
        set_longest(ranges, root);
        *below = root;
    } else {
        uint32_t rest;
        split(ranges, ranges[root].before, at, below, &rest);
        ranges[root].before = rest;
        set_longest(ranges, root);
        *others = root;
    }
}

static uint32_t join(struct range *ranges, uint32_t below, uint32_t above)
{
    if (!below || !above)
        return below ? below : above;
    uint32_t root = below;
    if (ranges[below].priority >= ranges[above].priority) {
        ranges[below].after = join(ranges, ranges[below].after, above);
    } else {
        ranges[above].before = join(ranges, below, ranges[above].before);
        root = above;
    }
    set_longest(ranges, root);
    return root;
}

/* The lowest offset, `offset` or above, where so many bytes are free; NONE: not below this root. */
static uint64_t fit(const struct range *ranges, uint32_t root, uint64_t offset, uint64_t bytes)
{
    while (root && ranges[root].longest >= bytes) {
        const struct range *r = &ranges[root];
        if (r->end > offset) {
            uint64_t found = fit(ranges, r->before, offset, bytes);
            if (found != NONE)
                return found;
            uint64_t from = sl_max_u64(r->start, offset);
            if (r->end - from >= bytes)
                return from;
        }
        root = r->after;
    }
    return NONE;
}

static bool is_taken(const struct range *ranges, uint32_t root, uint64_t start, uint64_t end)
{
    while (root) {
        if (ranges[root].end <= start)
            root = ranges[root].after;
        else if (ranges[root].start >= end)
            root = ranges[root].before;
        else
            return false;
    }
    return true;
}

/* The end of the last range of a set; 0: it has none. */
static uint64_t last_end(const struct range *ranges, uint32_t root)
{
    while (ranges[root].after)
        root = ranges[root].after;
    return ranges[root].end;
}

static void move_last_end(struct range *ranges, uint32_t root, uint64_t end)
{
    if (ranges[root].after)
        move_last_end(ranges, ranges[root].after, end);
    else
        ranges[root].end = end;
    set_longest(ranges, root);
}

/* Take [start, end) out of a set. */
static void take(struct places *p, uint32_t *set, uint64_t start, uint64_t end)
{
    if (!*set)
        *set = make_range(p, 0, NONE);
    if (is_taken(p->ranges, *set, start, end))
        return;
    uint32_t below, within, above, behind = 0;
    split(p->ranges, *set, start, &below, &within);
    split(p->ranges, within, end, &within, &above);
    uint64_t below_end = last_end(p->ranges, below);
    uint64_t free_end = sl_max_u64(below_end, last_end(p->ranges, within));
    if (below_end > start)
        move_last_end(p->ranges, below, start);
    drop_ranges(p, within);
    if (free_end > end)
        behind = make_range(p, end, free_end);
    *set = join(p->ranges, join(p->ranges, below, behind), above);
}

/* ---- the tree over time --------------------------------------------------------------------- */

/* A life in moments: the times at which one begins, since two lives meet where one begins within
 * the other. */
struct life {
    uint32_t first, last;
};

/* Raise `offset` to where the bytes fit into every set that a life consults below a node of the
 * moments [from, to]. */
static uint64_t raise(const struct places *p, uint32_t node, uint32_t from, uint32_t to,
                      struct life life, uint64_t offset, uint64_t bytes)
{
    const struct node *n = &p->nodes[node];
    if (!n->meets || to < life.first || from > life.last)
        return offset;
    bool whole = life.first <= from && to <= life.last;
    uint32_t set = whole ? n->meets : n->covers;
    if (set)
        offset = fit(p->ranges, set, offset, bytes);
    if (whole)
        return offset;
    uint32_t middle = from + (to - from) / 2;
    offset = raise(p, 2 * node, from, middle, life, offset, bytes);
    return raise(p, 2 * node + 1, middle + 1, to, life, offset, bytes);
}

static void occupy(struct places *p, uint32_t node, uint32_t from, uint32_t to, struct life life,
                   uint64_t start, uint64_t end)
{
    if (to < life.first || from > life.last)
        return;
    take(p, &p->nodes[node].meets, start, end);
    if (from == to)
        return; /* nobody asks below */
    if (life.first <= from && to <= life.last) {
        take(p, &p->nodes[node].covers, start, end);
        return;
    }
    uint32_t middle = from + (to - from) / 2;
    occupy(p, 2 * node, from, middle, life, start, end);
    occupy(p, 2 * node + 1, middle + 1, to, life, start, end);
}

/* moment[t]: how many moments there are up to and with time t. Returns how many in all. */
static uint32_t number_moments(uint32_t *moment, uint32_t times, const struct sl_place *places,
                               uint32_t count)
{
    uint32_t moments = 0;
    for (uint32_t i = 0; i < count; i++)
        moment[places[i].first] = 1;
    for (uint32_t t = 0; t < times; t++)
        moment[t] = moments += moment[t];
    return moments;
}

int sl_places_find(struct sl_place *places, uint32_t count, uint32_t times)
{
    int result = -ENOMEM;
    struct places p = {.random = 1};
    uint32_t *moment = calloc((size_t)times + 1, sizeof(*moment));
    if (!moment)
        goto done;
    uint32_t moments = number_moments(moment, times, places, count);
    size_t leaves = 1;
    while (leaves < moments)
        leaves *= 2;
    uint32_t end = (uint32_t)(leaves - 1);
    p.nodes = calloc(2 * leaves, sizeof(*p.nodes));
    if (!p.nodes)
        goto done;
    for (uint32_t i = 0; i < count && !p.out_of_memory; i++) {
        struct sl_place *place = &places[i];
        struct life life = {moment[place->first] - 1, moment[place->last] - 1};
        uint64_t before;
        place->offset = 0;
        if (!place->bytes)
            continue; /* nothing meets it */
        do {
            before = place->offset;
            place->offset = raise(&p, 1, 0, end, life, before, place->bytes);
        } while (place->offset != before);
        occupy(&p, 1, 0, end, life, place->offset, place->offset + place->bytes);
    }
    result = p.out_of_memory ? -ENOMEM : 0;
done:
    free(moment);
    free(p.nodes);
    free(p.ranges);
    return result;
}
