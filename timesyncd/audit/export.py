"""`python -m timesyncd.audit.export`, from the tree's top, writes the published contract of report.json into schemas/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from timesyncd.audit.report import Report

NAME = "audit_report.json"


class _Whole(GenerateJsonSchema):
    """Every field is in every report; a field's title would only repeat its name."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def document() -> str:
    schema = Report.model_json_schema(schema_generator=_Whole, mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema, indent=2) + "\n"


def main(folder: Path) -> None:
    (folder / NAME).write_text(document())


if __name__ == "__main__":
    main(Path("schemas"))
