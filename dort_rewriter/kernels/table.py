"""What our operators declare; ``scripts/operator_table.py`` writes it."""

from __future__ import annotations

from typing import Any

__all__ = ["TABLE"]

TABLE: tuple[dict[str, Any], ...] = (
    {"name": "BatchNorm", "mixed_types": True},
    {"name": "BatchNormGrad", "mixed_types": True},
    {"name": "Columns"},
    {"name": "ColumnsGrad"},
    {"name": "CrossEntropyGrad", "mixed_types": True},
    {"name": "DepthwiseConv"},
    {"name": "Elementwise", "never_fails": True},
    {"name": "ElementwiseList", "never_fails": True},
    {"name": "ElementwiseListAt"},
    {"name": "GeluGrad", "never_fails": True, "mixed_types": True},
    {"name": "LayerNorm", "never_fails": True, "mixed_types": True},
    {"name": "LayerNormGrad", "never_fails": True, "mixed_types": True},
    {"name": "MaxPool"},
    {"name": "MaxPoolGrad"},
    {"name": "MklAttentionGrad", "never_fails": True, "library": "mkl"},
    {"name": "MklProduct", "never_fails": True, "library": "mkl"},
    {"name": "Order"},
    {"name": "RmsNorm", "never_fails": True, "mixed_types": True},
    {"name": "RmsNormGrad", "never_fails": True, "mixed_types": True},
    {"name": "Rotary", "never_fails": True, "mixed_types": True},
    {"name": "ScatterZeros"},
    {"name": "Softmax", "never_fails": True, "mixed_types": True},
    {"name": "SoftmaxGrad", "never_fails": True, "mixed_types": True},
    {"name": "Sum", "never_fails": True, "mixed_types": True},
    {"name": "TorchCall", "library": "python"},
    {"name": "TransposeToBfloat16"},
    {"name": "TransposeToFloat", "mixed_types": True},
    {"name": "TransposeToFloat16"},
    {"name": "Variance", "never_fails": True, "mixed_types": True},
    {"name": "WriteRows"},
    {
        "name": "_scaled_dot_product_flash_attention_for_cpu",
        "never_fails": True,
        "layouts": "last axis",
        "library": "torch",
    },
    {
        "name": "_scaled_dot_product_flash_attention_for_cpu_backward",
        "never_fails": True,
        "layouts": "last axis",
        "library": "torch",
    },
    {"name": "addmm", "never_fails": True, "layouts": "transposed", "library": "torch"},
    {"name": "baddbmm", "never_fails": True, "layouts": "transposed", "library": "torch"},
    {"name": "bmm", "never_fails": True, "layouts": "transposed", "library": "torch"},
    {"name": "convolution", "layouts": "any", "library": "torch"},
    {"name": "convolution_backward", "layouts": "any", "library": "torch"},
    {"name": "mm", "never_fails": True, "layouts": "transposed", "library": "torch"},
)
