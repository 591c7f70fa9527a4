"""The exchange between ranks, replayed on more ranks than are here, in simulated time."""

from sparring.simulation.calibration import Calibration, calibrate
from sparring.simulation.model import Compute, Network, SimulatedSchedule, Workload
from sparring.simulation.replay import SimulatedStep, simulate

__all__ = [
    "Calibration",
    "Compute",
    "Network",
    "SimulatedSchedule",
    "SimulatedStep",
    "Workload",
    "calibrate",
    "simulate",
]
