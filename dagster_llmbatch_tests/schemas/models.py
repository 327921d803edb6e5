"""Output types of the schema tests."""

import datetime
import ipaddress
import uuid
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

MARKER = "XQ7-marker"


class Color(str, Enum):
    """A plain enum."""

    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    """Nested, with a default and an alias that only validation knows."""

    code: str
    count: int = 1
    label: "str | None" = Field(default=None, validation_alias="partLabel")


class Plain(BaseModel):
    """Strings and numbers only."""

    name: str
    score: float
    rank: int
    good: bool


class Rich(BaseModel):
    """One field of every kind of column."""

    color: Color
    size: Literal["s", "m"]
    level: Literal[1, 2]
    price: Decimal
    key: uuid.UUID
    day: datetime.date
    at: datetime.datetime
    clock: datetime.time
    span: datetime.timedelta
    part: Part
    parts: list[Part]
    words: set[str]
    runs: tuple[int, ...]
    either: "int | str"
    maybe: "datetime.date | None" = None
    host: "ipaddress.IPv4Address | None" = None


class Node(BaseModel):
    """Recursive."""

    value: int
    next: "Node | None" = None
    children: "list[Node]" = []


class Defaults(BaseModel):
    """Defaults that a strict answer has to spell as null."""

    n: int = 7
    part: Part = Part(code="none")
    parts: "list[Part] | None" = None
    note: "str | None" = "unasked"


class Aliased(BaseModel):
    """Another name on the wire than in the table."""

    kind: str = Field(alias="type")
    size: int = Field(validation_alias="sizeInCm")


@dataclass
class Point:
    """A dataclass is an object too."""

    x: int
    y: int


class Cat(BaseModel):
    """One side of a tagged union."""

    tag: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """The other side."""

    tag: Literal["dog"]
    tricks: int = 0


class Zoo(BaseModel):
    """A tagged union, and a dataclass."""

    pet: Annotated[Cat | Dog, Field(discriminator="tag")]
    where: Point


class Checked(BaseModel):
    """Validators of the user's, whose errors hold the value."""

    name: str
    low: int = 0
    high: int = 10

    @field_validator("name")
    @classmethod
    def lower_case(cls, value: str) -> str:
        """Refuses what is not lower case, with the value in the text; breaks on `!`."""
        if value.endswith("!"):
            raise KeyError(value)
        if value != value.lower():
            raise ValueError(f"{value} is not lower case")
        return value.strip()

    @model_validator(mode="after")
    def in_order(self) -> "Checked":
        """Refuses low above high."""
        if self.low > self.high:
            raise ValueError(f"{self.name}: low above high")
        return self


class Forbidding(BaseModel):
    """Takes no other key."""

    model_config = ConfigDict(extra="forbid")
    name: str


class Loose(BaseModel):
    """A validator makes a value of another type than the schema says."""

    n: int
    f: float = 1.0

    @field_validator("n", "f", mode="after")
    @classmethod
    def other_type(cls, value: Any) -> Any:
        """Text where a number was promised."""
        return MARKER


class Shade(Enum):
    """Values of two kinds."""

    ONE = 1
    TWO = "two"


class Changing(BaseModel):
    """Sets and enums, whose order hashes might decide."""

    words: set[str] = {"alpha", "beta", "gamma", "delta", "epsilon"}
    fixed: frozenset[Literal["a", "b", "c"]] = frozenset({"a", "b", "c"})
    shade: Shade = Shade.ONE
    day: datetime.date = datetime.date(2026, 1, 1)


RICH: "dict[str, Any]" = {
    "color": "red", "size": "s", "level": 2, "price": "12345678901234567890123456789.123456789",
    "key": "12345678-1234-5678-1234-567812345678", "day": "2026-11-30", "at": "2026-11-30T12:00:00",
    "clock": "12:30:00.5", "span": "PT1H", "part": {"code": "a", "count": 2, "partLabel": "L"},
    "parts": [{"code": "b", "count": 1, "partLabel": None}], "words": ["b", "a", "b"], "runs": [1, 2],
    "either": "x", "maybe": None, "host": "10.0.0.1",
}  # fmt: skip
"""A valid answer for Rich."""
