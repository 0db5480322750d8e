"""Rules from standard operators to standard operators."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.standard.activations import Gelu, SwiGLU, Swish
from dort_rewriter.optimize.patterns.standard.attention import Attention
from dort_rewriter.optimize.patterns.standard.batches import ReshapeMatMulReshape
from dort_rewriter.optimize.patterns.standard.casts import CastCast, CastOpCast
from dort_rewriter.optimize.patterns.standard.clips import ClipClip
from dort_rewriter.optimize.patterns.standard.constants import ConstantFolding
from dort_rewriter.optimize.patterns.standard.duplicates import CommonSubexpressions
from dort_rewriter.optimize.patterns.standard.expands import (
    ExpandBroadcast,
    ExpandExpand,
    ExpandSwap,
)
from dort_rewriter.optimize.patterns.standard.gathers import GatherNDRange
from dort_rewriter.optimize.patterns.standard.gemms import (
    GemmTranspose,
    MatMulAdd,
    TransposeMatMul,
)
from dort_rewriter.optimize.patterns.standard.heads import SharedHeads
from dort_rewriter.optimize.patterns.standard.identities import Dropout, Identity
from dort_rewriter.optimize.patterns.standard.leaves import LeavesLast
from dort_rewriter.optimize.patterns.standard.losses import CrossEntropyScatter
from dort_rewriter.optimize.patterns.standard.neutrals import (
    AddNeg,
    NeutralElement,
    NotNot,
    NotWhere,
    WhereConstant,
)
from dort_rewriter.optimize.patterns.standard.norms import RMSNormalization
from dort_rewriter.optimize.patterns.standard.powers import PowToMul
from dort_rewriter.optimize.patterns.standard.reductions import ReduceReshape
from dort_rewriter.optimize.patterns.standard.regions import ReshapeElementwise
from dort_rewriter.optimize.patterns.standard.rotary import RotaryEmbedding
from dort_rewriter.optimize.patterns.standard.scalings import (
    DivToMul,
    MulMulMul,
    MulMulScalar,
    ScaleSmaller,
)
from dort_rewriter.optimize.patterns.standard.sizes import ReshapeTarget, ShapeOfInput, StaticSizes
from dort_rewriter.optimize.patterns.standard.slices import (
    ConcatConcat,
    ConcatSlice,
    PadPadAdd,
    SliceSlice,
    SplitConcat,
)
from dort_rewriter.optimize.patterns.standard.softmaxes import LogSoftmax, Softmax
from dort_rewriter.optimize.patterns.standard.splits import SlicesSplit
from dort_rewriter.optimize.patterns.standard.transposes import (
    TransposeElementwise,
    TransposeEqualReshape,
    TransposeTranspose,
)
from dort_rewriter.optimize.patterns.standard.views import ReshapeReshape, ShapeBasedIdentity

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
    Swish,
    SwiGLU,
    RMSNormalization,
    Softmax,
    LogSoftmax,
    RotaryEmbedding,
    Attention,
    SharedHeads,
    CommonSubexpressions,
    SlicesSplit,
    ReshapeElementwise,
    LeavesLast,
)
"""In the order they are tried."""
