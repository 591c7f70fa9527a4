"""Training loop of `sparring train`, for any framework: reads data, makes steps, evaluates, reports.

    Source: batches, metrics        Trainer (a framework's): one step, predictions
                  └────────► run_training ◄────────┘

The adapter of a framework provides a `Trainer`; everything else is independent of the framework.
"""
