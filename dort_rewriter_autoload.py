"""What ``import torch`` calls: the package is imported if it is there, and nothing can fail.

torch (2.5 and newer) makes its own import fail when an entry point of ``torch.backends`` does.
This file stands beside the package, not in it, and an editable installation copies it: it is still
there when the package, or the folder it was installed from, is gone.
"""

__all__ = ["autoload"]


def autoload() -> None:
    """Import the package, which watches for ``torch.onnx``."""
    try:
        from dort_rewriter.hook.autoload import autoload

        autoload()
    except Exception as error:  # a program that only wants torch must get it
        import logging

        logging.getLogger(__name__).warning(
            "dort-rewriter is installed and cannot be imported (%s): torch goes on without it. "
            "Install it again, or `pip uninstall dort-rewriter`.",
            error,
        )
