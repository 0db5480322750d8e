"""A model as bytes or as files, whatever its form and size; and back.

NOTE: a model that is read is not trusted: what is damaged ends in a :class:`ValueError` that says
so, and weights in files are read from the folder of the model only, whatever their path says.
NOTE: onnx and onnx_ir are imported where they are needed: saved models are loaded without them.

Models that need not be read before onnxruntime does are bytes of a file of our own.

Each exported graph is written to files when ``ONNXRT_DUMP_PATH`` asks for it: the model goes to
``<prefix><N>.onnx``, the text of its FX graph to ``<prefix><N>.txt``; N counts from 0 for each
prefix in the life of the process, or since :func:`restart_numbers`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dort_rewriter import env
from dort_rewriter.errors import ExecutionError, ExportError
from dort_rewriter.files import staged
from dort_rewriter.forks import SafeLock
from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_CALL, TORCH_KERNELS
from dort_rewriter.kernels.torch_library import works_alone

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    from google.protobuf.message import Message
    from typing_extensions import TypeIs

logger = logging.getLogger(__name__)


class StoredModel(bytes):
    """The bytes of a model that this package wrote to a file, which names no other file."""

    path: Path
    torch_kernels: bool
    """Whether kernels of torch compute some of its nodes."""

    def __new__(cls, content: bytes, path: Path, *, torch_kernels: bool) -> StoredModel:
        """Know what the one who wrote it knew."""
        made = super().__new__(cls, content)
        made.path, made.torch_kernels = path, torch_kernels
        return made


def is_message(model: Any) -> TypeIs[onnx.ModelProto]:
    """Whether a model is a message of protobuf, without importing onnx for it."""
    kind = getattr(sys.modules.get("onnx"), "ModelProto", None)
    return kind is not None and isinstance(model, kind)


def uses_custom_kernels(model: Any) -> bool:
    """Whether a model imports our domain."""
    if isinstance(model, bytes):
        return OWN_DOMAIN.encode() in model  # at worst a library is loaded for nothing
    if is_message(model):
        return any(opset.domain == OWN_DOMAIN for opset in model.opset_import)
    return OWN_DOMAIN in model.graph.opset_imports


def uses_torch_kernels(model: Any) -> bool:
    """Whether kernels of torch compute nodes of a model in torch's own threads."""
    if isinstance(model, StoredModel):
        return model.torch_kernels
    if isinstance(model, bytes):
        return False
    nodes: Iterable[Any] = model.graph.node if is_message(model) else model.graph
    kernels = {TORCH_CALL} if works_alone() else {*TORCH_KERNELS, TORCH_CALL}
    return any(n.domain == OWN_DOMAIN and n.op_type in kernels for n in nodes)


Model: TypeAlias = "onnx.ModelProto | ir.Model | bytes"

INLINE_LIMIT = 1_800_000_000
"""Bytes of weights that fit in one message: protobuf holds 2 GB and more, but refuses to serialize
it, and nodes with where they come from take some."""


def _load_errors() -> tuple[type[Exception], ...]:
    """What protobuf, onnx and onnx_ir raise for what is no model; their own types have no base."""
    import onnx
    from google.protobuf import json_format, text_format
    from google.protobuf.message import DecodeError

    return (
        *(DecodeError, json_format.ParseError, text_format.ParseError, onnx.parser.ParseError),
        *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    )


# -- reading ------------------------------------------------------------------------------------


def read_model(path: str | os.PathLike[str]) -> ir.Model:
    """The model in a file; its weights in other files stay there until they are read.

    Raises :class:`OSError` when it cannot be read, :class:`ValueError` when it is no model, or
    wants files outside of its folder.
    """
    import onnx

    try:
        message = onnx.load(path, load_external_data=False)
    except _load_errors() as error:
        raise ValueError(_brief(error)) from error
    return from_message(message, Path(os.path.abspath(path)).parent)


def from_message(message: onnx.ModelProto | bytes, folder: Path | None = None) -> ir.Model:
    """The model in a message; ``folder`` has its weights in files, by default the current one.

    Raises :class:`ValueError` when it is no model, or wants files outside of the folder.
    """
    import onnx_ir as ir

    place = Path.cwd() if folder is None else folder
    checked = check_message(message, place)
    try:
        model = ir.from_proto(checked)
        ir.external_data.set_base_dir(model.graph, place)
    except _load_errors() as error:
        raise ValueError(_brief(error)) from error
    return model


def map_weights(model: ir.Model) -> None:
    """Keep the weights of a model that are in files mapped, also when these are gone or others.

    NOTE: writing such a model lets go of what onnx_ir has mapped.
    """
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(weight := value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(
                    weight.numpy(), dtype=weight.dtype, shape=weight.shape, name=weight.name
                )


def check_message(message: onnx.ModelProto | bytes, folder: Path | None = None) -> onnx.ModelProto:
    """The message, read if it is in bytes; ``folder`` has its weights in files, if it has some.

    Raises :class:`ValueError` when it is no model, or wants files outside of the folder.
    """
    import onnx

    try:
        if isinstance(message, bytes):
            message = onnx.ModelProto.FromString(message)
        if message.ir_version == 0:  # protobuf reads an empty file, or another, without complaint
            raise ValueError("it names no version")
        _check_parts(message, folder)
    except _load_errors() as error:
        raise ValueError(_brief(error)) from error
    return message


def _check_parts(message: Message, folder: Path | None, *, is_weight: bool = False) -> None:
    """Raise :class:`ValueError` for text that is none, which protobuf gives as bytes, and for
    tensors that are not whole: weights of graphs may be in files, those of functions and
    attributes never."""
    import onnx
    from google.protobuf.message import Message

    if isinstance(message, onnx.TensorProto):
        check_tensor(message, folder if is_weight else None)
    sparse = isinstance(message, onnx.SparseTensorProto)
    if sparse and is_weight and not (message.HasField("values") and message.HasField("indices")):
        raise ValueError("a sparse tensor has no values, or says not where they are")
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        # a map has keys, a repeated field items
        for item in (value,) if isinstance(value, str | bytes | Message) else value:
            if isinstance(item, bytes):
                raise ValueError(f"the field {field.name} holds no text: {item[:20]!r}")
            if isinstance(item, Message):
                weight = field.name in ("initializer", "sparse_initializer")
                inside = None if isinstance(item, onnx.FunctionProto) else folder
                _check_parts(item, inside, is_weight=weight or (sparse and is_weight))


def check_tensor(tensor: onnx.TensorProto, folder: Path | None = None) -> None:
    """Raise :class:`ValueError` for a tensor without all its data, or with data in a file that is
    not in a folder."""
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"the tensor {tensor.name!r} has a negative size")
    if tensor.data_location == tensor.EXTERNAL or tensor.external_data:
        _check_location(tensor, folder)
        return
    expected = _expected(tensor)
    if expected is not None and expected[0] != expected[1]:
        raise ValueError(
            f"the tensor {tensor.name!r} of {list(tensor.dims)} has {expected[0]} elements or "
            f"bytes of data, not {expected[1]}"
        )


def _check_location(tensor: onnx.TensorProto, folder: Path | None) -> None:
    if folder is None:
        raise ValueError(f"the tensor {tensor.name!r} refers to another file")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    real, inside = (os.path.realpath(p) for p in (folder / location, folder))
    if os.path.isabs(location) or os.path.commonpath([real, inside]) != inside:
        raise ValueError(
            f"the tensor {tensor.name!r} refers to {location!r}, which is outside of the folder "
            "of the model"
        )
    if os.path.exists(real) and not os.path.isfile(real):
        raise ValueError(f"the tensor {tensor.name!r} refers to {location!r}, which is no file")
    for key in ("offset", "length"):
        if int(entries.get(key) or 0) < 0:
            raise ValueError(f"the tensor {tensor.name!r} has a negative {key}")


def _expected(tensor: onnx.TensorProto) -> tuple[int, int] | None:
    """How many elements (bytes of raw data) a tensor has, and should have."""
    elements = math.prod(tensor.dims)
    dtype = tensor.DataType.Name(tensor.data_type)
    if dtype == "STRING":
        return len(tensor.string_data), elements
    bits = _bits(dtype)
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), math.ceil(elements * bits / 8)
    fields = (tensor.float_data, tensor.double_data, tensor.int32_data, tensor.int64_data)
    given = max(map(len, (*fields, tensor.uint64_data)))
    if dtype in ("COMPLEX64", "COMPLEX128"):
        return given, 2 * elements
    return given, elements if bits >= 8 else math.ceil(elements * bits / 8)


def _bits(dtype: str) -> int:
    """The bits of an element, which most names of types say: ``FLOAT8E4M3FN``, ``INT4``."""
    if (named := {"FLOAT": 32, "DOUBLE": 64, "BOOL": 8}.get(dtype)) is not None:
        return named
    if (found := re.match(r"[A-Z]+(\d+)", dtype)) is None:
        raise ValueError(f"no tensor is of type {dtype}")
    return int(found[1])


def _brief(error: BaseException) -> str:
    """What is wrong, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."


# -- writing ------------------------------------------------------------------------------------


def weight_bytes(model: ir.Model) -> int:
    """The size of all initializers."""
    return sum(weight.nbytes for weight in _weights(model))


def weights_in(model: Model) -> Iterator[bytes]:
    """Yield the bytes of the initializers of a model as it is written; none of a model that is
    given as bytes."""
    if not isinstance(model, bytes) and not is_message(model):
        yield from (weight.tobytes() for weight in _weights(model))


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf message, all weights in it.

    NOTE: not in files of our own beyond 2 GB: neither onnx nor onnxruntime takes weights from
    another folder than the model's. ``onnx.save(..., save_as_external_data=True)`` writes it.
    """
    import onnx_ir as ir

    return ir.to_proto(ir.external_data.load_to_model(model))


def check_target(filename: str | os.PathLike[str]) -> Path:
    """The path of a file that can be made; an ExportError says why it cannot."""
    target = Path(filename)
    if target.is_dir():
        raise ExportError(f"Cannot write {target}: it is a folder; add the name of a file.")
    if not target.parent.is_dir():
        raise ExportError(
            f"Cannot write {target}: the folder {target.parent} does not exist; create it first."
        )
    return target


def save_model(model: ir.Model, filename: str | os.PathLike[str]) -> None:
    """Write a model as :func:`write_model` does, completely or not at all."""
    target = check_target(filename)
    try:
        with staged(target.parent, last=target.name) as aside:
            write_model(model, aside / target.name)
    except OSError as e:
        raise ExportError(
            f"Cannot write {target}: {e}. Choose a folder that is writable and has "
            f"{weight_bytes(model):,} bytes free."
        ) from e


@contextlib.contextmanager
def serialized(model: Model) -> Iterator[bytes | str]:
    """The model as bytes, or the path of files that are there for a while if it does not fit.

    NOTE: a folder is made for such a model alone: others run where nothing can be written.
    """
    if isinstance(model, bytes):
        yield model
    elif not _needs_data_file(model):
        proto = model if is_message(model) else to_proto(model)
        yield bytes(proto.SerializeToString())
    else:
        with tempfile.TemporaryDirectory(prefix="dort-session-") as folder:
            path = Path(folder, "model.onnx")
            write_model(model, path)
            yield str(path)


def write_model(model: Model, path: Path) -> None:
    """Write a model to ``path``, and its weights to ``<path>.data`` when they do not fit there."""
    if isinstance(model, bytes):
        path.write_bytes(model)
        return
    import onnx_ir as ir

    external = f"{path.name}.data" if _needs_data_file(model) else None
    source = model if isinstance(model, ir.Model) else ir.from_proto(model)
    ir.save(source, path, external_data=external)


def _needs_data_file(model: onnx.ModelProto | ir.Model) -> bool:
    if is_message(model):
        from google.protobuf.message import EncodeError

        try:
            return bool(model.ByteSize() >= INLINE_LIMIT)
        except EncodeError:  # protobuf holds 2 GB and more, but refuses to measure them
            return True
    import onnx_ir as ir

    # Weights that are in a file already are named by a path that means nothing elsewhere.
    in_files = any(isinstance(w, ir.ExternalTensor) for w in _weights(model))
    return in_files or weight_bytes(model) >= INLINE_LIMIT


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    values = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    return (weight for weight in values if weight is not None)


_lock = SafeLock()
_next_number: dict[str, int] = {}
_refused: set[str] = set()
"""The prefixes under which files could not be written."""


def dump_graph(model: Model, text: str, prefix: str | None = None) -> Path | None:
    """Write a model and the text of its graph; return the path of the model.

    ``prefix`` is read from the environment when it is None; nothing is written when it is empty.
    Both files appear complete or not at all: raises :class:`ExecutionError` otherwise.
    """
    named = "ONNXRT_DUMP_PATH" if prefix is None else "what is given for it"
    prefix = env.read("ONNXRT_DUMP_PATH") if prefix is None else prefix
    if not prefix:
        return None
    with _lock:
        number = _next_number.get(prefix, 0)
        path = Path(f"{prefix}{number}.onnx")
        try:
            _write(model, text, path)
        except OSError as error:
            raise ExecutionError(
                f"The graph cannot be written to {str(path)!r} ({error.strerror or error}): "
                f"{named} must be the prefix of files in a folder that exists and is writable, "
                "such as 'dumps/model_'."
            ) from error
        _next_number[prefix] = number + 1
    return path


def try_dump(model: Model, text: str, prefix: str | None = None) -> None:
    """Do what :func:`dump_graph` does; what cannot be written is warned of, once a prefix.

    NOTE: a program that is looked at in this way is to run as it does otherwise.
    """
    try:
        dump_graph(model, text, prefix)
    except ExecutionError as error:
        refused = env.read("ONNXRT_DUMP_PATH") if prefix is None else prefix
        if refused not in _refused:
            _refused.add(refused)
            logger.warning("%s", error)


def restart_numbers(prefix: str) -> None:
    """Count from 0 again for a prefix, whose files were removed."""
    with _lock:
        _next_number.pop(prefix, None)


def _write(model: Model, text: str, path: Path) -> None:
    with staged(path.parent) as aside:
        write_model(model, aside / path.name)
        (aside / path.with_suffix(".txt").name).write_text(text, encoding="utf-8")
