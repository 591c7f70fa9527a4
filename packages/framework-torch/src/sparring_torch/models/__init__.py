"""Models of recommendation over embedding collections, with TorchRec's names and shapes."""

from sparring_torch.models.clicks import DLRM, Batch, DeepFM, DLRMTrain, SparseArch
from sparring_torch.models.factorization import MatrixFactorization
from sparring_torch.models.two_tower import TwoTower, TwoTowerTrainTask

__all__ = [
    "DLRM",
    "Batch",
    "DLRMTrain",
    "DeepFM",
    "MatrixFactorization",
    "SparseArch",
    "TwoTower",
    "TwoTowerTrainTask",
]
