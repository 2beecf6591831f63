"""The table: every global that a saved model may name, and how a pickle may use each of them.

A row says with which arguments a global may be called and what may be set on the result. Everything that has no row
is refused by name. The rows were read off real saves of Stable-Baselines3, sb3-contrib, Gymnasium, numpy and torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pytest_rlstability.kits.models import carried
from pytest_rlstability.kits.models.pickles import Call, External, Group, Name, maker, pairs

Shape = Callable[[Any], bool]


def _is(*kinds: type) -> Shape:
    return lambda node: type(node) in kinds


def _text(pattern: str) -> Shape:
    known = re.compile(pattern)
    return lambda node: type(node) is str and known.fullmatch(node) is not None


def _named(*names: str) -> Shape:
    return lambda node: isinstance(node, Name) and str(node) in names


def _made(*names: str) -> Shape:
    """What a row of this table made; the call itself is judged by that row."""
    return lambda node: str(maker(node)) in names


def _tuple(*shapes: Shape) -> Shape:
    def fits(node: Any) -> bool:
        if not isinstance(node, Group) or node.kind != "tuple" or len(node.items) != len(shapes):
            return False
        return all(shape(item) for shape, item in zip(shapes, node.items, strict=True))

    return fits


def _first(shape: Shape) -> Shape:
    return lambda node: isinstance(node, Group) and any(map(shape, node.items[:1]))


def _once(shape: Shape) -> Shape:
    """*shape*, asked once for each group: thousands of calls may share one with a million items."""
    known: WeakKeyDictionary[Group, bool] = WeakKeyDictionary()

    def fits(node: Any) -> bool:
        if not isinstance(node, Group):
            return False
        if node not in known:
            known[node] = shape(node)
        return known[node]

    return fits


def _each(kind: str, shape: Shape) -> Shape:
    return _once(lambda node: node.kind == kind and all(map(shape, node.items)))


def _any(*shapes: Shape) -> Shape:
    return lambda node: any(shape(node) for shape in shapes)


def _value(_: Any) -> bool:
    """Any value: whatever it is made of is judged where it is made."""
    return True


@_once
def _attributes(node: Group) -> bool:
    """The attributes of an object: a dict literal; no key has a meaning to the unpickler."""
    keys = node.items[::2]
    return node.kind == "dict" and all(type(key) is str and key.isidentifier() and key[:2] != "__" for key in keys)


@dataclass(frozen=True)
class Row:
    """How one global may be called: *arguments*, then what BUILD may set, then what may be added to the result."""

    arguments: Shape
    state: Shape | None = None
    holds: str = ""

    def fits(self, call: Call) -> bool:
        if not self.arguments(call.arguments) or (call.items and call.item_kind != self.holds):
            return False
        if not call.states:
            return True
        return self.state is not None and len(call.states) == 1 and self.state(call.states[0])


_INT, _STR, _BYTES, _BOOL, _NONE = _is(int), _is(str), _is(bytes), _is(bool), _is(type(None))
_PLAIN = _is(int, float, bool, str, bytes, type(None))
_SIZES = _each("tuple", _INT)
_NOTHING = _tuple()
_ANYTHING = _each("tuple", _value)
_ARRAYS = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
           "numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer")  # fmt: skip
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_GENERATOR_NAME = _text("|".join(_GENERATORS))
_GENERATOR_CLASS = _named(
    *(f"numpy.random._{name.lower().replace('pcg64dxsm', 'pcg64')}.{name}" for name in _GENERATORS)
)
_MOST_POSITION = {"pos": 624, "buffer_pos": 4}
_MAKES_GENERATOR = "numpy.random._pickle.__bit_generator_ctor"
_DTYPE = _any(_made("numpy.dtype"), _named("numpy.float32", "numpy.float64"))
_NO_HOOKS = _any(_NONE, lambda node: _made("collections.OrderedDict")(node) and not node.items and not node.states)
_STORAGE = _any(_made("torch.storage._load_from_bytes"), _is(External))


@_once
def _generator_state(node: Group) -> bool:
    """A dict; numpy uses the positions in it as indices into the generator's memory, without a check."""
    return node.kind == "dict" and all(
        type(value) is int and 0 <= value <= _MOST_POSITION[key]
        for group in (node, *(value for _, value in pairs(node)))
        for key, value in pairs(group)
        if type(key) is str and key in _MOST_POSITION
    )  # fmt: skip


def _equal(number: int) -> Shape:
    return lambda node: type(node) is int and node == number


class _DtypeRow(Row):
    """Sizes and flags that BUILD sets on a dtype decide how numpy reads memory, so they follow from its kind."""

    def fits(self, call: Call) -> bool:
        if not _tuple(_text(r"[biufc]\d{1,2}|[?bB]|O8|[US]\d{1,6}"), _is(bool, int), _is(bool, int))(call.arguments):
            return False
        kind, length = call.arguments.items[0][0], int(call.arguments.items[0][1:] or 0)
        sizes = {"O": (-1, -1, 63), "U": (4 * length, 4, 8), "S": (length, 1, 0)}.get(kind, (-1, -1, 0))
        state = _tuple(_equal(3), _text("[<>|=]"), _NONE, _NONE, _NONE, *map(_equal, sizes))
        return not call.items and len(call.states) <= 1 and all(map(state, call.states))


def _names(text: str) -> frozenset[str]:
    """``"module: A B"`` lines as ``{"module.A", "module.B"}``."""
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return frozenset(f"{module.strip()}.{name}" for module, _, names in lines for name in names.split())


_OBJECTS = _names("""
    gymnasium.spaces: box.Box discrete.Discrete multi_discrete.MultiDiscrete multi_binary.MultiBinary dict.Dict
    gymnasium.spaces: tuple.Tuple
    stable_baselines3.common.buffers: ReplayBuffer DictReplayBuffer RolloutBuffer DictRolloutBuffer NStepReplayBuffer
    stable_baselines3.common.noise: NormalActionNoise OrnsteinUhlenbeckActionNoise VectorizedActionNoise
    stable_baselines3.common.running_mean_std: RunningMeanStd
    stable_baselines3.common.utils: FloatSchedule ConstantSchedule LinearSchedule
    stable_baselines3.common.vec_env.vec_normalize: VecNormalize
    stable_baselines3.her.her_replay_buffer: HerReplayBuffer
""")
VALUES = _names("""
    builtins: float int bool str bytes list dict tuple set object
    numpy: dtype float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool bool_
    torch: float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 bool
    torch.nn.modules.activation: ReLU ReLU6 Tanh Sigmoid ELU CELU SELU GELU SiLU Mish LeakyReLU PReLU Softplus
    torch.nn.modules.activation: Softsign Tanhshrink Hardtanh Hardswish Hardsigmoid LogSigmoid RReLU Hardshrink
    torch.nn.modules.activation: Softshrink GLU Softmin Softmax LogSoftmax
    torch.nn.modules.linear: Identity
    torch.optim: adam.Adam adamw.AdamW sgd.SGD rmsprop.RMSprop adagrad.Adagrad adamax.Adamax nadam.NAdam radam.RAdam
    torch.optim: adadelta.Adadelta asgd.ASGD rprop.Rprop
    stable_baselines3.common.buffers: ReplayBuffer DictReplayBuffer RolloutBuffer DictRolloutBuffer NStepReplayBuffer
    stable_baselines3.common.policies: ActorCriticPolicy ActorCriticCnnPolicy MultiInputActorCriticPolicy
    stable_baselines3.common.sb2_compat.rmsprop_tf_like: RMSpropTFLike
    stable_baselines3.common.torch_layers: FlattenExtractor NatureCNN CombinedExtractor
    stable_baselines3.her.her_replay_buffer: HerReplayBuffer
    stable_baselines3.dqn.policies: DQNPolicy CnnPolicy MultiInputPolicy
    stable_baselines3.sac.policies: SACPolicy CnnPolicy MultiInputPolicy
    stable_baselines3.td3.policies: TD3Policy CnnPolicy MultiInputPolicy
    sb3_contrib.ars.policies: ARSPolicy ARSLinearPolicy
    sb3_contrib.common.maskable.buffers: MaskableRolloutBuffer MaskableDictRolloutBuffer
    sb3_contrib.common.maskable.policies: MaskableActorCriticPolicy MaskableActorCriticCnnPolicy
    sb3_contrib.common.maskable.policies: MaskableMultiInputActorCriticPolicy
    sb3_contrib.common.recurrent.buffers: RecurrentRolloutBuffer RecurrentDictRolloutBuffer
    sb3_contrib.common.recurrent.policies: RecurrentActorCriticPolicy RecurrentActorCriticCnnPolicy
    sb3_contrib.common.recurrent.policies: RecurrentMultiInputActorCriticPolicy
    sb3_contrib.crossq.policies: CrossQPolicy MultiInputPolicy
    sb3_contrib.qrdqn.policies: QRDQNPolicy CnnPolicy MultiInputPolicy
    sb3_contrib.tqc.policies: TQCPolicy CnnPolicy MultiInputPolicy
""")
"""Classes that may stand in a model as a value, to be called by SB3: none does more than build a part of a model."""

STORAGES: Mapping[str, int] = {
    "torch.DoubleStorage": 8, "torch.LongStorage": 8, "torch.FloatStorage": 4, "torch.IntStorage": 4,
    "torch.HalfStorage": 2, "torch.BFloat16Storage": 2, "torch.ShortStorage": 2, "torch.CharStorage": 1,
    "torch.ByteStorage": 1, "torch.BoolStorage": 1, "torch.storage.UntypedStorage": 1,
}  # fmt: skip
"""The bytes of one item in each kind of a tensor's storage."""

ARGUMENTS = STORAGES.keys() | _names("""
    numpy: ndarray
    numpy.random: _pcg64.PCG64 _pcg64.PCG64DXSM _mt19937.MT19937 _philox.Philox _sfc64.SFC64
    numpy.random: _pickle.__bit_generator_ctor bit_generator.SeedSequence
""")
"""Globals that may stand only among the arguments of a call, where the row of that call asks for them."""


REDUCE: Mapping[str, Row] = {
    "builtins.bytearray": Row(_any(_NOTHING, _tuple(_BYTES))),
    "builtins.complex": Row(_tuple(_is(float), _is(float))),
    "builtins.range": Row(_SIZES),
    "builtins.set": Row(_tuple(_each("list", _PLAIN))),
    "builtins.frozenset": Row(_tuple(_each("list", _PLAIN))),
    "builtins.slice": Row(_each("tuple", _is(int, type(None)))),
    "collections.OrderedDict": Row(
        _NOTHING, lambda node: _attributes(node) and len(node.items) == 2 and node.items[0] == "_metadata", "dict"
    ),
    "collections.deque": Row(_any(_NOTHING, _tuple(_any(_NOTHING, _each("list", _value)), _INT)), holds="list"),
    **dict.fromkeys(
        _names("""
        pathlib: PosixPath WindowsPath PurePosixPath PureWindowsPath
        pathlib._local: PosixPath WindowsPath PurePosixPath PureWindowsPath
        """),
        Row(_each("tuple", _STR)),
    ),
    "numpy.dtype": _DtypeRow(_ANYTHING),
    **dict.fromkeys(_ARRAYS[:2], Row(
        _tuple(_named("numpy.ndarray"), _tuple(_INT), _BYTES),
        _tuple(_INT, _SIZES, _DTYPE, _is(bool, int), _any(_BYTES, _each("list", _value))),
    )),
    **dict.fromkeys(_ARRAYS[2:], Row(
        _tuple(_any(_BYTES, _made("builtins.bytearray")), _DTYPE, _SIZES, _text("[CFA]")))),
    **dict.fromkeys(("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"),
            Row(_tuple(_made("numpy.dtype"), _BYTES))),
    _MAKES_GENERATOR: Row(_tuple(_any(_GENERATOR_CLASS, _GENERATOR_NAME)), _any(
        _generator_state,
        _tuple(_generator_state, _made("numpy.random.bit_generator.__pyx_unpickle_SeedSequence")),
    )),
    "numpy.random._pickle.__generator_ctor": Row(
        _any(_tuple(_any(_GENERATOR_NAME, _made(_MAKES_GENERATOR))), _tuple(_GENERATOR_NAME, _named(_MAKES_GENERATOR))),
        _generator_state,
    ),
    "numpy.random._pickle.__randomstate_ctor": Row(
        _any(_NOTHING, _tuple(_any(_GENERATOR_NAME, _made(_MAKES_GENERATOR)))), _generator_state
    ),
    "numpy.random.__RandomState_ctor": Row(_NOTHING, _generator_state),
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence": Row(
        _tuple(_named("numpy.random.bit_generator.SeedSequence"), _INT, _NONE),
        _each("tuple", _any(_PLAIN, _made(*_ARRAYS), _SIZES)),
    ),
    "gymnasium.utils.seeding.RandomNumberGenerator._generator_ctor": Row(
        _any(_NOTHING, _tuple(_GENERATOR_NAME)), _generator_state
    ),
    "stable_baselines3.common.type_aliases.TrainFrequencyUnit": Row(_tuple(_STR)),
    "stable_baselines3.her.goal_selection_strategy.GoalSelectionStrategy": Row(_tuple(_INT)),
    "torch.device": Row(_any(_tuple(_STR), _tuple(_STR, _INT))),
    "torch.Size": Row(_tuple(_SIZES)),
    "torch.storage._load_from_bytes": Row(_tuple(_BYTES)),  # what is inside is judged on its own
    "torch._utils._rebuild_tensor": Row(_tuple(_STORAGE, _INT, _SIZES, _SIZES)),
    "torch._utils._rebuild_tensor_v2": Row(_tuple(_STORAGE, _INT, _SIZES, _SIZES, _BOOL, _NO_HOOKS)),
    "torch._utils._rebuild_parameter": Row(
        _tuple(_made("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"), _BOOL, _NO_HOOKS)
    ),
}  # fmt: skip
"""What REDUCE may call."""

NEWOBJ: Mapping[str, Row] = {
    **dict.fromkeys(_OBJECTS, Row(_NOTHING, _attributes)),
    "builtins.frozendict": Row(_tuple(_each("dict", _value))),
    "stable_baselines3.common.type_aliases.TrainFreq": Row(
        _tuple(_INT, _made("stable_baselines3.common.type_aliases.TrainFrequencyUnit"))
    ),
    "sb3_contrib.common.recurrent.type_aliases.RNNStates": Row(_tuple(_is(Group), _is(Group))),
}
"""Whose ``__new__`` NEWOBJ may call."""

_COUNT = lambda node: type(node) is int and node >= 0  # noqa: E731
_STORED = (_text("storage"), _named(*STORAGES), _text(r"\d{1,20}"), _STR, _COUNT)
STORED = _any(_tuple(*_STORED), _tuple(*_STORED, _NONE))
"""The reference of a tensor's storage outside the pickle; old torch files add the view, which is always None."""

METACLASSES = frozenset({"builtins.type", "abc.ABCMeta"})
CODE: Mapping[str, Row] = {
    **dict.fromkeys(
        ("cloudpickle._make_function", "cloudpickle._make_skel_func"), Row(_first(carried.is_code), _value)
    ),
    "cloudpickle._make_skeleton_class": Row(_first(_named(*METACLASSES)), _value),
    "cloudpickle._function_setstate": Row(_first(carried.is_function)),
    "cloudpickle._class_setstate": Row(_first(carried.is_class)),
    **dict.fromkeys(
        _names("""
        cloudpickle: _make_cell _make_empty_cell _make_typevar subimport _builtin_type
        cloudpickle: _get_dataclass_field_type_sentinel
        _collections: _tuplegetter
        builtins: property classmethod staticmethod
        collections.abc: _CallableGenericAlias
        _collections_abc: _CallableGenericAlias
        types: CodeType GenericAlias
        """),
        Row(_ANYTHING),
    ),
    "builtins.type": Row(_tuple(_NONE)),
    "builtins.getattr": Row(_tuple(lambda node: not isinstance(node, Name), _text("[a-z][a-z_]*"))),
    "functools.partial": Row(_ANYTHING, _each("tuple", _value)),
    "functools.reduce": Row(_tuple(_named("_operator.or_", "operator.or_"), _any(_each("list", _value), _ANYTHING))),
    # A union of types is a builtin type since Python 3.14, which cloudpickle names in its own way.
    "operator.getitem": Row(_tuple(_any(_is(Name), lambda node: carried.unnamed_type(node) == "UnionType"), _value)),
    **dict.fromkeys(
        _names("""
        dataclasses: Field _MISSING_TYPE _DataclassParams _HAS_DEFAULT_FACTORY_CLASS _KW_ONLY_TYPE _AutoDocstring
        typing: ForwardRef
        annotationlib: ForwardRef
        """),
        Row(_NOTHING, _value),
    ),
}
"""What the functions and classes that a pickle carries are made with; it is reported as code."""
