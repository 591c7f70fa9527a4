"""A stack of storages with the interface of a storage: the hottest rows are in the first tier.

    tiered_storage.py     the storage: finds search the tiers in order, writes go to the first tier
    stack.py              its tiers, lock and counts; the locations of rows, and the invariants
    composition.py        which storages can be stacked, and the capabilities of their stack
    tier.py               one tier, with its Bloom filters, write buffer and counters
    write_buffer.py       rows that wait to be written to the next tier
    demotion.py           moves rows to lower tiers: retries failed writes, and limits the buffers
    write_back.py         background writes to the last tier
    promotion.py          rows that were found in lower tiers, for copying into the first tier
    scan.py               scans all rows, each key once
    first_tier.py         native updates and reads of the first tier in a stack
    device_first_tier.py  the same for a first tier on a device
    lock.py               reader-writer lock
    meter.py              counters of each tier
    open_tiers.py         opens the tiers in the options
    estimate.py           estimates the memory of a stack

``docs/decisions/tiers.md`` explains the design.
"""
