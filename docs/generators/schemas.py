"""Write tests/jetstream/schemas.json from the JSON schemas of JetStream's answers, advisories and metrics.

    python docs/generators/schemas.py path/to/jsm.go/schemas > tests/jetstream/schemas.json

Run it when those schemas change; the output is committed. It keeps only the keywords by which a schema can refuse a
message. A part that several schemas share is written once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

SOURCE = "schemas/ of github.com/nats-io/jsm.go (Apache-2.0), by docs/generators/schemas.py; do not edit"
FOLDERS = ("jetstream/api/v1/*_response.json", "jetstream/advisory/v1/*.json", "jetstream/metric/v1/*.json")
KEYWORDS = frozenset({
    "additionalProperties", "allOf", "const", "enum", "format", "items", "maxLength", "maximum", "minLength", "minimum",
    "oneOf", "pattern", "patternProperties", "properties", "required", "type"})
"""Keywords that can refuse a message: ``tests/jetstream/schemas.py`` checks each. The others only describe."""
_NAMED = ("properties", "patternProperties")
"""Keywords whose members are names, not keywords."""
_SHORT = 120
"""Shorter schemas, in characters, are repeated instead of named."""


def essential(schema: Any) -> Any:
    """Return a schema without the keywords that only describe."""
    if isinstance(schema, list):
        return [essential(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: {name: essential(one) for name, one in value.items()} if key in _NAMED else essential(value)
            for key, value in schema.items() if key in KEYWORDS}


def main(source: Path) -> None:
    found = [json.loads(path.read_text()) for pattern in FOLDERS for path in sorted(source.glob(pattern))]
    types = {schema["title"]: essential(schema) for schema in found}
    common: Counter[str] = Counter()

    def count(schema: Any) -> None:
        if isinstance(schema, dict) and "type" in schema:
            common[json.dumps(schema)] += 1
        for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
            count(one)

    names: dict[str, str] = {}
    definitions: dict[str, Any] = {}

    def shared(schema: Any, top: bool = False) -> Any:
        if isinstance(schema, list):
            return [shared(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        text = json.dumps(schema)
        if top or common[text] < 2 or len(text) < _SHORT:
            return {key: shared(one) for key, one in schema.items()}
        if text not in names:
            names[text] = f"part{len(names) + 1}"
            definitions[names[text]] = {key: shared(one) for key, one in schema.items()}
        return {"$ref": names[text]}

    count(list(types.values()))
    rows = {name: shared(schema, top=True) for name, schema in types.items()}

    def lines(table: dict[str, Any]) -> str:
        return ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}"
                          for name, row in table.items())

    print(f'{{"source": {json.dumps(SOURCE)},\n"definitions": {{\n{lines(definitions)}}},\n'
          f'"types": {{\n{lines(rows)}}}}}')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
