"""The role `parameters`: a service whose tables learn from gradients that are pushed."""
