"""A stack of storages that is a storage: the hottest rows are in the first tier.

    tiered_storage.py     the storage: find falls through, writes go to the first tier and down
    stack.py              its tiers, lock and counts; where rows may be, and the invariants
    composition.py        which storages can be stacked, and the capabilities of their stack
    tier.py               one tier, with its Bloom filters, write buffer and counters
    write_buffer.py       rows on their way from one tier to the next
    demotion.py           how they go down: failed writes are tried again, and a write waits for room
    write_back.py         background writes to the last tier
    promotion.py          rows that were found below and may come up with the next write
    scan.py               all rows, each key once
    first_tier.py         native update and visit of the first tier, with the stack around them
    device_first_tier.py  the same for a first tier on a device
    lock.py               many readers, or one writer
    meter.py              counters of each tier
    open_tiers.py         opens the tiers that options name
    estimate.py           bytes of a stack, before there is one

``docs/decisions/tiers.md`` says why.
"""
