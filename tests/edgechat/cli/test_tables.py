"""Tables on terminals of any width."""

from edgechat.cli.tables import fitting, paragraphs

HEADS = ("name", "size", "licence", "good for")
ROWS = [("qwen3-4b", "2.5 GB", "apache-2.0", "all-round; reasons when asked")]


def test_all_columns_where_there_is_room() -> None:
    assert fitting(HEADS, ROWS, ("licence", "size"), 80) == ([0, 1, 2, 3], True)
    assert fitting(HEADS, ROWS, ("licence", "size"), 10 + 8 + 12 + 14) == ([0, 1, 2, 3], True)


def test_spare_columns_go_one_after_the_other() -> None:
    assert fitting(HEADS, ROWS, ("licence", "size"), 10 + 8 + 12 + 14 - 1) == ([0, 1, 3], True)
    assert fitting(HEADS, ROWS, ("licence", "size"), 10 + 8 + 14 - 1) == ([0, 3], True)
    assert fitting(HEADS, ROWS, (), 5) == ([0, 1, 2, 3], False)


def test_a_table_without_rows() -> None:
    assert fitting(HEADS, [], ("licence",), 80) == ([0, 1, 2, 3], True)


def test_where_no_table_fits_each_row_is_a_paragraph() -> None:
    assert paragraphs(HEADS, [*ROWS, ("b", "", "mit", "")], 24) == [
        "qwen3-4b",
        "  size: 2.5 GB",
        "  licence: apache-2.0",
        "  good for: all-round;",
        "    reasons when asked",
        "b",
        "  licence: mit",
    ]
    assert paragraphs(
        ("", "needs"), [("context", "188.7 MB"), ("weights, as in the file", "96.6 MB")], 24
    ) == [
        "context: 188.7 MB",
        "weights, as in the file:",
        "  96.6 MB",
    ]
