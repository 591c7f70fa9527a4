"""Programs without Python: a trained module as a folder that C++ runs with serving snapshots.

export ──► bundle ──► load_program (Python), sparring_program.h (C++)
"""
