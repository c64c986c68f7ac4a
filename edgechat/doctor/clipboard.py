"""Whether a terminal is likely to take what is copied in the app (OSC 52): none of them says."""

from collections.abc import Mapping

# Of each, the variable that gives it away, and how its value begins.
TAKES_IT = (
    ("KITTY_WINDOW_ID", ""),
    ("WEZTERM_PANE", ""),
    ("GHOSTTY_RESOURCES_DIR", ""),
    ("ALACRITTY_WINDOW_ID", ""),
    ("WT_SESSION", ""),
    ("TERM_PROGRAM", "ghostty"),
    ("TERM_PROGRAM", "WezTerm"),
    ("TERM_PROGRAM", "vscode"),
    ("TERM_PROGRAM", "iTerm.app"),
    ("TERM_PROGRAM", "rio"),
    ("TERM", "xterm-kitty"),
    ("TERM", "xterm-ghostty"),
    ("TERM", "alacritty"),
    ("TERM", "foot"),
    ("TERM", "wezterm"),
    ("TERM", "contour"),
)
REFUSES_IT = (("TERM_PROGRAM", "Apple_Terminal"), ("TERM", "linux"), ("TERM", "dumb"))


def clipboard(environment: Mapping[str, str]) -> str:
    """What to expect of copying: "works", "doesn't work", "may work", or what tmux or screen needs for it.

    Args:
        environment: that of the process on the terminal.
    """
    if environment.get("TMUX"):
        return "works in tmux with `set -s set-clipboard on`"
    if environment.get("STY"):
        return "doesn't work in screen"
    for marks, answer in ((REFUSES_IT, "doesn't work"), (TAKES_IT, "works")):
        for name, beginning in marks:
            value = environment.get(name, "")
            if value and value.startswith(beginning):
                return answer
    return "may work"
