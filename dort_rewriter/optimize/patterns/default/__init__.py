"""Rules from standard operators to standard operators."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.default.activations import Gelu
from dort_rewriter.optimize.patterns.default.attention import Attention
from dort_rewriter.optimize.patterns.default.batches import ReshapeMatMulReshape
from dort_rewriter.optimize.patterns.default.casts import CastCast, CastOpCast
from dort_rewriter.optimize.patterns.default.clips import ClipClip
from dort_rewriter.optimize.patterns.default.constants import ConstantFolding
from dort_rewriter.optimize.patterns.default.duplicates import CommonSubexpressions
from dort_rewriter.optimize.patterns.default.expands import (
    ExpandBroadcast,
    ExpandExpand,
    ExpandSwap,
)
from dort_rewriter.optimize.patterns.default.gathers import GatherNDRange
from dort_rewriter.optimize.patterns.default.gemms import (
    GemmTranspose,
    MatMulAdd,
    TransposeMatMul,
)
from dort_rewriter.optimize.patterns.default.identities import Dropout, Identity
from dort_rewriter.optimize.patterns.default.leaves import LeavesLast
from dort_rewriter.optimize.patterns.default.losses import CrossEntropyScatter
from dort_rewriter.optimize.patterns.default.neutrals import (
    AddNeg,
    NeutralElement,
    NotNot,
    NotWhere,
    WhereConstant,
)
from dort_rewriter.optimize.patterns.default.norms import RMSNormalization
from dort_rewriter.optimize.patterns.default.powers import PowToMul
from dort_rewriter.optimize.patterns.default.reductions import ReduceReshape
from dort_rewriter.optimize.patterns.default.regions import ReshapeElementwise
from dort_rewriter.optimize.patterns.default.rotary import RotaryEmbedding
from dort_rewriter.optimize.patterns.default.scalings import (
    DivToMul,
    MulMulMul,
    MulMulScalar,
    ScaleSmaller,
)
from dort_rewriter.optimize.patterns.default.sizes import ReshapeTarget, ShapeOfInput, StaticSizes
from dort_rewriter.optimize.patterns.default.slices import (
    ConcatConcat,
    ConcatSlice,
    PadPadAdd,
    SliceSlice,
    SplitConcat,
)
from dort_rewriter.optimize.patterns.default.softmaxes import LogSoftmax, Softmax
from dort_rewriter.optimize.patterns.default.splits import SlicesSplit
from dort_rewriter.optimize.patterns.default.transposes import (
    TransposeElementwise,
    TransposeEqualReshape,
    TransposeTranspose,
)
from dort_rewriter.optimize.patterns.default.views import ReshapeReshape, ShapeBasedIdentity

__all__ = ["RULES"]

RULES: tuple[type[Rule] | type[GraphPass], ...] = (
    Identity,
    Dropout,
    ConstantFolding,
    StaticSizes,
    ShapeOfInput,
    CastCast,
    CastOpCast,
    ClipClip,
    AddNeg,
    NeutralElement,
    NotNot,
    NotWhere,
    WhereConstant,
    ShapeBasedIdentity,
    ReshapeTarget,
    ReshapeReshape,
    ReshapeMatMulReshape,
    ReduceReshape,
    GatherNDRange,
    SliceSlice,
    ConcatSlice,
    SplitConcat,
    ConcatConcat,
    PadPadAdd,
    ExpandExpand,
    ExpandBroadcast,
    ExpandSwap,
    TransposeTranspose,
    TransposeEqualReshape,
    TransposeElementwise,
    GemmTranspose,
    TransposeMatMul,
    MatMulAdd,
    PowToMul,
    DivToMul,
    MulMulScalar,
    MulMulMul,
    ScaleSmaller,
    CrossEntropyScatter,
    Gelu,
    RMSNormalization,
    Softmax,
    LogSoftmax,
    RotaryEmbedding,
    Attention,
    CommonSubexpressions,
    SlicesSplit,
    ReshapeElementwise,
    LeavesLast,
)
"""In the order they are tried."""
