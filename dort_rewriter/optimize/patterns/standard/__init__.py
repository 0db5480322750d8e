"""Rules from standard operators to standard operators."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.standard.arithmetic import (
    AddNeg,
    CastCast,
    CastOpCast,
    DivToMul,
    MulMulMul,
    MulMulScalar,
    NeutralElement,
    ScaleSmaller,
    WhereConstant,
)
from dort_rewriter.optimize.patterns.standard.attention import (
    Attention,
    RotaryEmbedding,
    SharedHeads,
)
from dort_rewriter.optimize.patterns.standard.constants import ConstantFolding, Dropout, Identity
from dort_rewriter.optimize.patterns.standard.gathers import GatherNDRange
from dort_rewriter.optimize.patterns.standard.gemms import (
    GemmTranspose,
    MatMulAdd,
    TransposeMatMul,
)
from dort_rewriter.optimize.patterns.standard.layers import (
    CrossEntropyScatter,
    Gelu,
    LinearAttention,
    LogSoftmax,
    RMSNormalization,
    Softmax,
    SwiGLU,
    Swish,
)
from dort_rewriter.optimize.patterns.standard.moves import (
    ExpandBroadcast,
    ExpandSwap,
    PadPadAdd,
    TransposeElementwise,
    TransposeEqualReshape,
    TransposeTranspose,
)
from dort_rewriter.optimize.patterns.standard.passes import (
    CommonSubexpressions,
    LeavesLast,
    ReshapeElementwise,
    SlicesSplit,
)
from dort_rewriter.optimize.patterns.standard.views import (
    ReduceReshape,
    ReshapeMatMulReshape,
    ReshapeReshape,
    ReshapeTarget,
    ShapeBasedIdentity,
    ShapeOfInput,
    StaticSizes,
)

RULES: tuple[type[Rule] | type[GraphPass], ...] = (
    Identity,
    Dropout,
    ConstantFolding,
    StaticSizes,
    ShapeOfInput,
    CastCast,
    CastOpCast,
    AddNeg,
    NeutralElement,
    WhereConstant,
    ShapeBasedIdentity,
    ReshapeTarget,
    ReshapeReshape,
    ReshapeMatMulReshape,
    ReduceReshape,
    GatherNDRange,
    PadPadAdd,
    ExpandBroadcast,
    ExpandSwap,
    TransposeTranspose,
    TransposeEqualReshape,
    TransposeElementwise,
    GemmTranspose,
    TransposeMatMul,
    MatMulAdd,
    DivToMul,
    MulMulScalar,
    MulMulMul,
    ScaleSmaller,
    CrossEntropyScatter,
    Gelu,
    Swish,
    SwiGLU,
    RMSNormalization,
    LinearAttention,
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
