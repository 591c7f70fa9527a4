"""Quality of predictions and of rankings."""
