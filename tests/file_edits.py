"""What makes a folder one that cannot be imported: each returns a function that changes it."""

import json


def write(name, text):
    return lambda folder: (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))


def replace_in(name, old, new):
    def edit(folder):
        text = (folder / name).read_text("utf-8")
        assert old in text
        write(name, text.replace(old, new))(folder)

    return edit


def add_to(name, line):
    return lambda folder: write(name, f"{(folder / name).read_text('utf-8')}\n{line}\n")(folder)


def edit_json(name, **changes):
    def edit(folder):
        content = json.loads((folder / name).read_text("utf-8")) | changes
        write(name, json.dumps(content))(folder)

    return edit


def truncate(name):
    def edit(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 9])

    return edit


def delete(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]
