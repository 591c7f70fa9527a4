"""Update methods, which apply gradients to rows.

    hyper-parameters (per table, may change between steps)
         │
    UpdateMethod ── state_width(dim), initial_state(dim) ──► the state after an embedding
         └───────── update(rows) ──► embeddings and state, in place

The built-in methods are native and fused: each row is accessed once to sum its gradient and to update
its embedding and state. Plugins may register other methods, written in NumPy; see
`sparring.contracts.hookspecs.sparring_register_update_methods`.
"""
