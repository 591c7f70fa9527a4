"""Update methods: how gradients change rows.

    hyper-parameters (per table, may change between steps)
         │
    UpdateMethod ── state_width(dim), initial_state(dim) ──► the state behind an embedding
         └───────── update(rows) ──► embeddings and state, in place

The built-in methods run natively, fused: each row is visited once, its gradient summed and its
embedding and state changed on the spot. A plugin may register methods of its own, in NumPy; see
`sparring.contracts.hookspecs.sparring_register_update_methods`.
"""
