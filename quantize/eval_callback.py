"""Sums up the squares of what llama.cpp multiplies its matrices with, while it computes (`cb_eval`).

For a process of its own only (quantize/imatrix_native.py). llama.cpp asks of each node of its graph whether
we want to see it; the products of weights with float32 activations we do. `MUL_MAT_ID` is a product with some
experts of a stack, chosen for each token.

Layout: `struct ggml_tensor` in ggml.h.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.errors import NativeFailure
from quantize.imatrix import Entry

MIN_TOKENS = 16
"""llama.cpp's own tool leaves out smaller products too."""
F32 = 0
I32 = 26
OBJECT_BYTES = 32
"""That ggml counts beside each tensor."""

Sums = npt.NDArray[np.float64]


class _Tensor(ctypes.Structure):
    """`struct ggml_tensor`."""


_Tensor._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
)


class SquareSums:
    """The callback, and what it has summed up. An error of ours ends the computation and is kept."""

    def __init__(self) -> None:
        """
        Raises:
            NativeFailure: llama.cpp's tensors are laid out otherwise: it is another version.
        """
        import llama_cpp
        from llama_cpp import _ctypes_extensions, _ggml

        self._ggml: Any = _ctypes_extensions.load_shared_library("ggml-base", _ggml.libggml_base_path)
        self._ggml.ggml_op_desc.restype = ctypes.c_char_p
        self._ggml.ggml_op_desc.argtypes = (ctypes.c_void_p,)
        self._ggml.ggml_tensor_overhead.restype = ctypes.c_size_t
        self._ggml.ggml_backend_tensor_get.restype = None
        self._ggml.ggml_backend_tensor_get.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
        )  # fmt: skip
        if self._ggml.ggml_tensor_overhead() != OBJECT_BYTES + ctypes.sizeof(_Tensor):
            raise NativeFailure("llama.cpp's tensors are laid out otherwise: it is another version")
        self.sums: dict[str, Sums] = {}
        """[experts, columns]."""
        self.counts: dict[str, npt.NDArray[np.int64]] = {}
        """[experts]."""
        self.error: Exception | None = None
        self.last: str | None = None
        """The matrix after which nothing of interest is computed; it is learned in the first batch."""
        self._latest = ""
        self._operations: dict[int, bytes] = {}
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._called)

    def end_batch(self) -> None:
        """A batch is through: the last matrix that was seen is the last of each."""
        self.last = self._latest or None

    def entries(self) -> dict[str, Entry]:
        """What was summed up, in float32."""
        return {
            name: Entry(sums.astype(np.float32), self.counts[name].astype(np.float32))
            for name, sums in self.sums.items()
        }

    def _called(self, address: int, asked: bool, _: int | None) -> bool:
        """llama.cpp's question (`asked`), and afterwards its answer; False then: it need not go on."""
        try:
            if self.error is not None:
                return False
            node = ctypes.cast(address, ctypes.POINTER(_Tensor)).contents
            if asked:
                return self._wanted(address, node)
            name = _name(node)
            if self._operation(address, node) == b"MUL_MAT_ID":
                self._add_experts(name, node)
            else:
                self._add(name, node)
            self._latest = name
            return name != self.last
        except Exception as error:  # in a callback it would be printed and forgotten
            self.error = error
            return False

    def _operation(self, address: int, node: _Tensor) -> bytes:
        if node.op not in self._operations:
            self._operations[node.op] = self._ggml.ggml_op_desc(address) or b""
        return self._operations[node.op]

    def _wanted(self, address: int, node: _Tensor) -> bool:
        operation = self._operation(address, node)
        if operation == b"MUL_MAT_ID":
            return _name(node).startswith("blk.")
        if operation != b"MUL_MAT":
            return False
        inputs = node.src[1].contents
        is_large = inputs.ne[1] >= MIN_TOKENS and inputs.type == F32
        return bool(is_large and _name(node).startswith("blk."))

    def _values(self, tensor: _Tensor, dtype: str) -> npt.NDArray[Any]:
        """A tensor's numbers, slowest dimension first: [ne3, ne2, ne1, ne0], wherever they are."""
        shape = tuple(tensor.ne)[::-1]
        strides = tuple(tensor.nb)[::-1]
        n_bytes = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 4
        raw = np.empty(n_bytes, np.uint8)
        self._ggml.ggml_backend_tensor_get(ctypes.byref(tensor), raw.ctypes.data, 0, n_bytes)
        return np.ndarray(shape, dtype, raw.data, 0, strides)

    def _place(self, name: str, experts: int, columns: int) -> Sums:
        if name not in self.sums:
            self.sums[name] = np.zeros((experts, columns))
            self.counts[name] = np.zeros(experts, np.int64)
        if self.sums[name].shape != (experts, columns):
            raise NativeFailure(f"{name} is multiplied with inputs of {columns} numbers, and with others")
        return self.sums[name]

    def _add(self, name: str, node: _Tensor) -> None:
        """A plain product. A weight of three dimensions is a stack, whose parts see their own inputs."""
        weight, inputs = node.src[0].contents, node.src[1].contents
        x = self._values(inputs, "<f4")  # [b, m, t, columns]
        n_matrices = int(weight.ne[2] * weight.ne[3])
        sums = self._place(name, n_matrices, int(inputs.ne[0]))
        # llama.cpp repeats the weights over batches of inputs.
        for b in range(x.shape[0]):
            for m in range(x.shape[1]):
                place = (b % int(weight.ne[3])) * int(weight.ne[2]) + m % int(weight.ne[2])
                sums[place] += np.einsum("tk,tk->k", x[b, m], x[b, m])
                self.counts[name][place] += x.shape[2]

    def _add_experts(self, name: str, node: _Tensor) -> None:
        """Each token's input counts for the experts that it goes to."""
        weight, inputs, chosen = (node.src[i].contents for i in range(3))
        x = self._values(inputs, "<f4")[0]  # [t, used or 1, columns]
        ids = self._values(chosen, "<i4")[0, 0]  # [t, used]
        sums = self._place(name, int(weight.ne[2]), int(inputs.ne[0]))
        for expert in np.unique(ids):
            token, slot = np.nonzero(ids == expert)
            rows = x[token, slot % x.shape[1]]
            sums[expert] += np.einsum("tk,tk->k", rows, rows)
            self.counts[name][expert] += len(rows)


def _name(node: _Tensor) -> str:
    """The weight's, without what a device adds: "CUDA0#blk.0.attn_k.weight#0"."""
    raw: bytes = node.src[0].contents.name
    name = raw.decode("utf-8", "replace")
    return name.split("#")[1] if "#" in name else name
