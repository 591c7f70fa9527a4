"""Recommendation models with TorchRec's names and shapes."""

from sparring_torch.models.clicks import Batch, DeepFM, SparseArch
from sparring_torch.models.crossnet import (
    CrossNet,
    LowRankCrossNet,
    LowRankMixtureCrossNet,
    VectorCrossNet,
)
from sparring_torch.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection, DLRMTrain
from sparring_torch.models.factorization import MatrixFactorization
from sparring_torch.models.interactions import (
    InteractionArch,
    InteractionDCNArch,
    InteractionProjectionArch,
)
from sparring_torch.models.layers import MLP, DenseArch, OverArch
from sparring_torch.models.two_tower import TwoTower, TwoTowerTrainTask

__all__ = [
    "DLRM",
    "DLRM_DCN",
    "MLP",
    "Batch",
    "CrossNet",
    "DLRMTrain",
    "DLRM_Projection",
    "DeepFM",
    "DenseArch",
    "InteractionArch",
    "InteractionDCNArch",
    "InteractionProjectionArch",
    "LowRankCrossNet",
    "LowRankMixtureCrossNet",
    "MatrixFactorization",
    "OverArch",
    "SparseArch",
    "TwoTower",
    "TwoTowerTrainTask",
    "VectorCrossNet",
]
