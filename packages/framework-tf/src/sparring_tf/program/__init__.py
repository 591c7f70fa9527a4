"""Programs without Python: a trained model as a folder that C++ runs with serving snapshots.

export ──► bundle ──► load_program (Python), sparring_program.h (C++)
"""
