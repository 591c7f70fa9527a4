"""Training loop of `sparring train`, for any framework: reads data, steps, evaluates, reports.

    Source: batches, metrics        Trainer (a framework's): one step, predictions
                  └────────► run_training ◄────────┘

A framework's adapter brings a `Trainer` for each model of a configuration; all else is here.
"""
