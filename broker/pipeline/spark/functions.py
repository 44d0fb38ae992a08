"""Functions on subjects and header blocks, for SQL and for the DataFrame API.

    subject_matches(subject, pattern)    whether a NATS pattern ("orders.*.created", "alarm.>") matches
    subject_token(subject, n)            the n-th token, 1 is the first, -1 the last; NULL if there are fewer
    header(headers, name)                the first value of a header, by its exact name; NULL if there is none
    headers_list(headers)                all headers, in order: ARRAY<STRUCT<name: STRING, value: STRING>>
    headers_map(headers)                 all headers by name: MAP<STRING, ARRAY<STRING>>

``headers`` is the source's default column ``headers``: the header block as published.

These are SQL functions of the session (``CREATE TEMPORARY FUNCTION``): Spark inlines their bodies into the plan, so
nothing runs in Python, for any arguments. The Python functions below return columns and register the SQL functions
with the active session; before using them in SQL, call ``register_functions``.

The functions follow the rules of ``protocol.subject.matches`` and ``protocol.headers``, hence nats-server's. Bytes that
are not UTF-8 are compared and returned as U+FFFD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

__all__ = ["header", "headers_list", "headers_map", "register_functions", "subject_matches", "subject_token"]

# Patterns become regular expressions by replacements alone. Spark computes those in advance if the pattern is a
# literal, which it never does with lambdas. The replacements, in order:
# - special characters are quoted, so each dot has a backslash;
# - the last token, if it is > or *; as in nats-server, a last * does not match a last ">";
# - every other *.
# A pattern with an empty token matches only itself.
_QUOTED = r"regexp_replace(pattern, r'([\\^$|?+()\[\]{}*.])', r'\\$1')"
_LAST_REST = rf"regexp_replace({_QUOTED}, r'(\A|[.])>\z', r'$1[^.]+(?:[.][^.]+)*')"
_LAST_STAR = rf"regexp_replace({_LAST_REST}, r'(\A|[.])\\\*\z', r'$1(?!>\\z)[^.]+')"
_REGEX = rf"r'\A' || regexp_replace({_LAST_STAR}, r'(?<=\A|[.])\\\*(?=\\[.])', '[^.]+') || r'\z'"
_EMPTY_TOKEN = r"pattern RLIKE r'\A\z|\A[.]|[.]\z|[.][.]'"

# A header is located in bytes: the number of characters of text that is not UTF-8 is undefined.
_TEXT = "CAST(headers AS STRING)"
_LINE = "chr(13) || chr(10)"
_MARK = f"{_LINE} || name || ':'"
_BEFORE = f"octet_length(substring_index({_TEXT}, {_MARK}, 1))"
_LIST = (f"transform(filter(split({_TEXT}, {_LINE}, -1), (line, i) -> i > 0 AND instr(line, ':') > 1), line -> "
         f"named_struct('name', substring_index(line, ':', 1), 'value', trim(substring(line, instr(line, ':') + 1))))")

_FUNCTIONS = (
    ("subject_matches(subject STRING, pattern STRING)", "BOOLEAN",
     f"subject = pattern OR (NOT {_EMPTY_TOKEN} AND subject RLIKE ({_REGEX}))"),
    ("subject_token(subject STRING, n INT)", "STRING",
     "try_element_at(split(subject, '[.]', -1), n)"),
    ("header(headers BINARY, name STRING)", "STRING",
     f"CASE WHEN {_BEFORE} < octet_length(headers) THEN ltrim(substring_index(CAST(substring(headers, "
     f"{_BEFORE} + octet_length({_MARK}) + 1) AS STRING), {_LINE}, 1)) END"),
    ("headers_list(headers BINARY)", "ARRAY<STRUCT<name: STRING, value: STRING>>", _LIST),
    # Spark allows no SQL function inside a lambda, so the body of headers_list is repeated.
    ("headers_map(headers BINARY)", "MAP<STRING, ARRAY<STRING>>",
     f"aggregate({_LIST}, CAST(map() AS MAP<STRING, ARRAY<STRING>>), (found, one) -> map_concat("
     f"map_filter(found, (name, _) -> name != one.name), map(one.name, "
     f"concat(coalesce(try_element_at(found, one.name), CAST(array() AS ARRAY<STRING>)), array(one.value)))))"),
)
"""Signature, type and body of each function."""

_REGISTERED = "jetblock.functions"
"""The Spark setting that marks a session in which the functions are registered. The session's Python object cannot be
marked, since each access makes a new object."""


def register_functions(spark: SparkSession) -> None:
    """Register the functions for this session's SQL, replacing others of the same names."""
    for signature, returns, body in _FUNCTIONS:
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {signature} RETURNS {returns} RETURN {body}")
    spark.conf.set(_REGISTERED, "true")


def subject_matches(subject: Column | str, pattern: Column | str) -> Column:
    """Return whether ``pattern`` (its text, or a column) matches the subjects of a column (or its name)."""
    return _call("subject_matches", _column(subject), _literal(pattern))


def subject_token(subject: Column | str, n: Column | int) -> Column:
    """Return the n-th token of a column's subjects, counted from 1, or backwards from -1; NULL if there are fewer.

    Raises: ValueError for 0.
    """
    if isinstance(n, int) and n == 0:
        raise ValueError("tokens are counted from 1, or backwards from -1")
    return _call("subject_token", _column(subject), _literal(n))


def header(headers: Column | str, name: Column | str) -> Column:
    """Return the first value of the header ``name`` (its text, or a column) in a column of header blocks, or NULL."""
    return _call("header", _column(headers), _literal(name))


def headers_list(headers: Column | str) -> Column:
    """Return all headers of a column of header blocks, in order, as structs of name and value; NULL without a block."""
    return _call("headers_list", _column(headers))


def headers_map(headers: Column | str) -> Column:
    """Return all headers of a column of header blocks: values by name; NULL without a block."""
    return _call("headers_map", _column(headers))


def _call(name: str, *columns: Column) -> Column:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import call_function

    spark = SparkSession.active()
    if spark.conf.get(_REGISTERED, None) is None:
        register_functions(spark)
    return call_function(name, *columns)


def _column(value: Column | str) -> Column:
    from pyspark.sql.functions import col

    return col(value) if isinstance(value, str) else value


def _literal(value: Column | str | int) -> Column:
    from pyspark.sql.functions import lit

    return lit(value)
