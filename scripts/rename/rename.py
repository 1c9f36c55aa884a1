# ruff: noqa
"""The codemod of issue 2's words; it goes when the last family is renamed.

    .venv/bin/python scripts/rename/rename.py scripts/rename/1_store.json [--dry] [--only=classes,tokens]

Executes a plan of renames on node/, operator/, tests/, e2e/, demo/, benchmarks/ and scripts/, and prints what wants a look:
CONFLICT (two names for one place), MIXED (a union of which not all are renamed), UNRESOLVED (an untyped attribute that
may be the one), STRING (an old class name in a string), EXISTS (the new token is in the file already), NOT FOUND.
Classes and globals follow imports and re-exports; members follow mypy's types (three minutes), and by name where no type
is known and no other class has the name; keywords of dataclasses and replace() follow, those of renamed parameters do not
(mypy says where). Not followed: names in strings of tests (patch.object, put), and "files" (move them by hand).
After it: ruff check --fix, ruff format, mypy, then the strings that tests patch by.
"""

import ast, collections, io, json, re, sys, tokenize, symtable
from pathlib import Path

ROOT = Path.cwd()
args = [a for a in sys.argv[1:] if not a.startswith("--")]
only = set("classes,globals,members,locals,tokens".split(","))
for a in sys.argv[1:]:
    if a.startswith("--only="):
        only = set(a[7:].split(","))
dry = "--dry" in sys.argv
plan = collections.defaultdict(list)
for p in args:
    for k, v in json.loads(Path(p).read_text()).items():
        plan[k] += v


def module_of(path):
    parts = list(path.with_suffix("").parts)
    if parts[0] in ("node", "operator"):
        parts = parts[1:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


FILES = [
    p.relative_to(ROOT)
    for r in ("node", "operator", "tests", "e2e", "demo", "benchmarks", "scripts")
    for p in (ROOT / r).rglob("*.py")
    if "_pb2" not in p.name
]
MODS = {module_of(p): p for p in FILES}
SRC = {p: (ROOT / p).read_text() for p in FILES}
TREE = {p: ast.parse(s) for p, s in SRC.items()}
edits = collections.defaultdict(dict)  # file -> (line, col_bytes) -> (old, new)
warn = []


def edit(p, line, col, old, new, why=""):
    """col is in utf8 bytes"""
    key = (line, col)
    had = edits[p].get(key)
    if had and had != (old, new):
        warn.append(f"CONFLICT {p}:{line}:{col} {had} {(old, new)} {why}")
        return
    text = LINES[p][line - 1]
    if text[col : col + len(old)] != old.encode():
        warn.append(f"MISPLACED {p}:{line}:{col} {old}->{new}: {text!r} {why}")
        return
    edits[p][key] = (old, new)


LINES = {p: [l.encode() for l in s.split("\n")] for p, s in SRC.items()}


def find_name(p, line, col, name):
    """position of identifier from (line,col) on"""
    pat = re.compile(rb"(?<![\w])" + name.encode() + rb"(?![\w])")
    l = line
    while l <= len(LINES[p]):
        m = pat.search(LINES[p][l - 1], col if l == line else 0)
        if m:
            return l, m.start()
        l += 1
    return None


glob = {}  # fullname -> new
if "classes" in only:
    for c in plan["classes"]:
        glob[c["module"] + "." + c["old"]] = c["new"]
if "globals" in only:
    for c in plan["globals"]:
        glob[c["module"] + "." + c["old"]] = c["new"]
members = {}
if "members" in only:
    for c in plan["members"]:
        members[(c["class"], c["old"])] = c["new"]
params = {}


# ---- name tables per module (python ast; re-exports resolved transitively)
def bindings(tree, mod, is_pkg):
    out = {}

    def imp(node):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = mod.split(".")
                if not is_pkg:
                    parts = parts[:-1]
                parts = parts[: len(parts) - (node.level - 1)]
                base = ".".join(parts + ([node.module] if node.module else []))
            for a in node.names:
                out[a.asname or a.name] = base + "." + a.name
        else:
            for a in node.names:
                if a.asname:
                    out[a.asname] = a.name
                else:
                    out[a.name.split(".")[0]] = a.name.split(".")[0]

    for n in ast.walk(tree):
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            imp(n)

    def body(stmts):
        for n in stmts:
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                out[n.name] = mod + "." + n.name
            elif isinstance(n, ast.Assign):
                for t in n.targets:
                    for x in ast.walk(t):
                        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
                            out[x.id] = mod + "." + x.id
            elif isinstance(n, (ast.AnnAssign, ast.AugAssign)) and isinstance(n.target, ast.Name):
                out[n.target.id] = mod + "." + n.target.id
            elif isinstance(n, ast.TypeAlias) if hasattr(ast, "TypeAlias") else False:
                out[n.name.id] = mod + "." + n.name.id
            elif isinstance(n, (ast.If, ast.Try, ast.With)):
                body(n.body)
                body(getattr(n, "orelse", []))
                body(getattr(n, "finalbody", []))
                for h in getattr(n, "handlers", []):
                    body(h.body)

    body(tree.body)
    return out


BIND = {m: bindings(TREE[p], m, p.name == "__init__.py") for m, p in MODS.items()}


def resolve(full, seen=()):
    """follow re-exports to the defining fullname"""
    if full in seen:
        return full
    mod, _, name = full.rpartition(".")
    if mod in BIND and name in BIND[mod] and BIND[mod][name] != full:
        return resolve(BIND[mod][name], (*seen, full))
    return full


def scoped_locals(fn):
    """names bound inside a function (not nested), minus global decl"""
    out = set()
    a = fn.args
    for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]:
        out.add(x.arg)

    def walk(n):
        for c in ast.iter_child_nodes(n):
            if isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                out.add(c.name)
                continue
            if isinstance(c, ast.Lambda):
                continue
            if isinstance(c, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                walk(c)
                continue
            if isinstance(c, ast.Name) and isinstance(c.ctx, (ast.Store, ast.Del)):
                out.add(c.id)
            if isinstance(c, ast.ExceptHandler) and c.name:
                out.add(c.name)
            if isinstance(c, (ast.MatchAs, ast.MatchStar)) and c.name:
                out.add(c.name)
            if isinstance(c, (ast.Import, ast.ImportFrom)):
                pass
            walk(c)

    if isinstance(fn, ast.Lambda):
        return out
    for s in fn.body:
        walk(ast.Module([s], []))
    return out


if glob:
    missing = set(glob)
    for m, p in MODS.items():
        tree, bind = TREE[p], BIND[m]
        local = {n: resolve(f) for n, f in bind.items()}
        interesting = {n: glob[f] for n, f in local.items() if f in glob}

        def visit(node, shadow, cls):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                if not isinstance(node, ast.Lambda):
                    for d in node.decorator_list:
                        visit(d, shadow, cls)
                    if node.returns:
                        visit(node.returns, shadow, cls)
                a = node.args
                for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]:
                    if x.annotation:
                        visit(x.annotation, shadow, cls)
                for d in a.defaults + [d for d in a.kw_defaults if d]:
                    visit(d, shadow, cls)
                inner = shadow | scoped_locals(node)
                for s in [node.body] if isinstance(node, ast.Lambda) else node.body:
                    visit(s, inner, None)
                return
            if isinstance(node, ast.ClassDef):
                for d in node.decorator_list + node.bases + [k.value for k in node.keywords]:
                    visit(d, shadow, cls)
                for s in node.body:
                    visit(s, shadow, node)
                return
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if isinstance(node, ast.ImportFrom):
                    for a in node.names:
                        f = None
                        tgt = bindings(ast.Module([node], []), m, p.name == "__init__.py")[a.asname or a.name]
                        f = resolve(tgt)
                        if f in glob and a.name == f.rpartition(".")[2]:
                            edit(p, a.lineno, a.col_offset, a.name, glob[f])
                return
            if isinstance(node, ast.Name):
                if node.id in interesting and node.id not in shadow and local[node.id].rpartition(".")[2] == node.id:
                    edit(p, node.lineno, node.col_offset, node.id, interesting[node.id])
                return
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.fullmatch(r"[\w\.\[\], |]+", node.value)
                and any(re.search(rf"\b{n}\b", node.value) for n in interesting)
            ):
                warn.append(f"STRING {p}:{node.lineno} {node.value!r}")
            if isinstance(node, ast.Attribute):
                chain = []
                x = node
                while isinstance(x, ast.Attribute):
                    chain.append(x.attr)
                    x = x.value
                if isinstance(x, ast.Name) and x.id in bind and x.id not in shadow:
                    base = bind[x.id]
                    r = resolve(base + "." + chain[-1]) if chain else ""
                    full = resolve(base)
                    ch = list(reversed(chain))
                    cur = full
                    for i, c in enumerate(ch):
                        nxt = resolve(cur + "." + c)
                        if nxt in glob and nxt.rpartition(".")[2] == c and i == len(ch) - 1:
                            edit(p, node.end_lineno, node.end_col_offset - len(c.encode()), c, glob[nxt])
                        cur = nxt
            for c in ast.iter_child_nodes(node):
                visit(c, shadow, cls)

        for s in tree.body:
            visit(s, frozenset(), None)
        # definitions
        for n in ast.walk(tree):
            if (
                isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and m + "." + n.name in glob
                and n in tree.body
            ):
                missing.discard(m + "." + n.name)
                pos = find_name(p, n.lineno, n.col_offset, n.name)
                edit(p, *pos, n.name, glob[m + "." + n.name])
        for n in ast.walk(tree):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and m + "." + n.id in glob:
                missing.discard(m + "." + n.id)
            if isinstance(n, ast.Global):
                for g in n.names:
                    if m + "." + g in glob:
                        warn.append(f"GLOBAL {p}:{n.lineno} {g}")
        # __all__
        for n in tree.body:
            if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets):
                for e in ast.walk(n.value):
                    if isinstance(e, ast.Constant) and e.value in interesting:
                        edit(p, e.lineno, e.col_offset + 1, e.value, interesting[e.value])
        # dotted strings
        for n in ast.walk(tree):
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.end_lineno == n.lineno and "." in n.value:
                for f, new in glob.items():
                    i = n.value.find(f)
                    if i >= 0 and not re.match(r"\w", n.value[i + len(f) :]):
                        old = f.rpartition(".")[2]
                        col = LINES[p][n.lineno - 1].find(f.encode(), n.col_offset)
                        if col >= 0:
                            edit(p, n.lineno, col + len(f) - len(old), old, new)
    for f in missing:
        warn.append(f"NOT FOUND global {f}")

# ---- members through mypy
if members or ("locals" in only and plan["locals"]):
    from mypy import build
    from mypy.options import Options
    from mypy.modulefinder import BuildSource
    from mypy.nodes import *
    from mypy.types import *

    o = Options()
    o.python_version = (3, 11)
    o.mypy_path = ["node", "operator", "."]
    o.explicit_package_bases = True
    o.namespace_packages = True
    o.export_types = True
    o.preserve_asts = True
    o.incremental = False
    o.check_untyped_defs = True
    o.ignore_missing_imports = True
    o.show_traceback = False
    o.cache_dir = "/dev/null"
    o.ignore_errors = False
    res = build.build([BuildSource(str(p), m, None) for m, p in MODS.items()], o)
    types = res.types
    print("mypy errors (before):", len(res.errors), file=sys.stderr)
    names_renamed = {old for _, old in members}
    byname = collections.defaultdict(set)
    for (c, old), new in members.items():
        byname[old].add(new)

    def infos(t):
        t = get_proper_type(t)
        if isinstance(t, Instance):
            return [t.type]
        if isinstance(t, UnionType):
            return [i for x in t.items for i in infos(x)]
        if isinstance(t, TypeType):
            return infos(t.item)
        if isinstance(t, TypeVarType):
            return infos(t.upper_bound)
        if isinstance(t, TupleType):
            return infos(t.partial_fallback)
        if isinstance(t, FunctionLike) and t.is_type_obj():
            return [t.type_object()]
        if isinstance(t, LiteralType):
            return infos(t.fallback)
        return []

    def owner(info, name):
        out = []
        for b in info.mro:
            if name in b.names:
                out.append(b.fullname)
        return out

    def target(info, name):
        for f in owner(info, name):
            if (f, name) in members:
                return members[(f, name)]
        # subclass of a protocol/base that was renamed is found by mro; fakes in tests that implement structurally are by name
        return None

    unresolved = []
    from mypy import nodes as N

    _attrs = {}
    SKIP = {
        "node",
        "info",
        "type",
        "analyzed",
        "def_var",
        "var",
        "target_type",
        "unanalyzed_type",
        "original_def",
        "special_sig",
        "mro",
        "declared_metaclass",
        "names",
        "alias_tvars",
        "type_guard",
        "kind",
    }

    def attrs(cls):
        if cls not in _attrs:
            out = set()
            for k in cls.__mro__:
                for n, v in vars(k).items():
                    if (
                        type(v).__name__ in ("getset_descriptor", "member_descriptor")
                        and n not in SKIP
                        and not n.startswith("__")
                    ):
                        out.add(n)
            _attrs[cls] = sorted(out)
        return _attrs[cls]

    def walk(tree):
        stack = list(tree.defs)
        seen = set()
        while stack:
            n = stack.pop()
            if isinstance(n, (list, tuple)):
                stack.extend(n)
                continue
            if not isinstance(n, N.Node) or isinstance(n, (N.TypeInfo, N.MypyFile)):
                continue
            if id(n) in seen:
                continue
            seen.add(id(n))
            yield n
            for a in attrs(type(n)):
                try:
                    v = getattr(n, a)
                except Exception:
                    continue
                if isinstance(v, (list, tuple, N.Node)):
                    stack.append(v)

    class V:
        def __init__(self, p):
            self.p = p

        def visit_member_expr(self, e):
            if e.name in names_renamed:
                t = types.get(e.expr)
                ii = infos(t) if t is not None else []
                if isinstance(e.expr, RefExpr) and isinstance(e.expr.node, TypeInfo):
                    ii = [e.expr.node]
                if isinstance(e.expr, RefExpr) and isinstance(e.expr.node, MypyFile):
                    return
                news = {target(i, e.name) for i in ii}
                if not ii:
                    unresolved.append((self.p, e.end_line, e.end_column, e.name))
                    return
                if news == {None}:
                    return
                if None in news or len(news) > 1:
                    warn.append(f"MIXED {self.p}:{e.line} .{e.name} {[i.fullname for i in ii]}")
                    news.discard(None)
                edit(self.p, e.end_line, e.end_column - len(e.name), e.name, news.pop())

        def visit_call_expr(self, e):
            cal = e.callee
            # setattr-like
            nm = cal.name if isinstance(cal, (MemberExpr, NameExpr)) else ""
            if (
                nm in ("setattr", "getattr", "hasattr", "delattr", "object", "attrgetter")
                and len(e.args) >= 2
                and isinstance(e.args[1], StrExpr)
                and e.args[1].value in names_renamed
            ):
                v = e.args[1].value
                t = types.get(e.args[0])
                ii = infos(t) if t is not None else []
                if isinstance(e.args[0], RefExpr) and isinstance(e.args[0].node, TypeInfo):
                    ii = [e.args[0].node]
                news = {target(i, v) for i in ii} - {None}
                if len(news) == 1:
                    edit(self.p, e.args[1].line, e.args[1].column + 1, v, news.pop())
                elif not ii:
                    warn.append(f"SETATTR {self.p}:{e.line} {v!r}")
            kws = [n for n in e.arg_names if n and n in names_renamed]
            if kws:
                info = None
                if isinstance(cal, RefExpr) and isinstance(cal.node, TypeInfo):
                    info = cal.node
                elif nm == "replace" and e.args:
                    t = types.get(e.args[0])
                    ii = infos(t) if t is not None else []
                    info = ii[0] if ii else None
                else:
                    t = types.get(cal)
                    pt = get_proper_type(t) if t is not None else None
                    if isinstance(pt, FunctionLike) and pt.is_type_obj():
                        info = pt.type_object()
                if info is not None:
                    for k in kws:
                        n = target(info, k)
                        if n:
                            KW.append((self.p, e.line, e.column, k, n))

    KW = []
    count_m = [0]
    for m, p in MODS.items():
        st = res.graph.get(m)
        tree = res.files.get(m)
        if tree is None:
            warn.append(f"NOMYPY {m}")
            continue
        v = V(p)
        for n in walk(tree):
            if isinstance(n, N.MemberExpr):
                v.visit_member_expr(n)
                count_m[0] += 1
            elif isinstance(n, N.CallExpr):
                v.visit_call_expr(n)
    print("member expressions", count_m, file=sys.stderr)
    for _ in ():
        pass
    for p, line, col, k, n in KW:
        for c in ast.walk(TREE[p]):
            if isinstance(c, ast.Call) and c.lineno == line and c.col_offset == col:
                for kw in c.keywords:
                    if kw.arg == k:
                        edit(p, kw.lineno, kw.col_offset, k, n)
    # definitions in class bodies
    seen_def = set()
    for m, p in MODS.items():

        def classes(node, prefix):
            for c in ast.iter_child_nodes(node):
                if isinstance(c, ast.ClassDef):
                    yield c, prefix + "." + c.name
                    yield from classes(c, prefix + "." + c.name)
                elif isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield from classes(c, prefix)

        for c, full in classes(TREE[p], m):
            mine = {old: new for (f, old), new in members.items() if f == full}
            info = None
            # subclasses overriding renamed members
            tf = res.files.get(m)
            if tf is not None and c.name in tf.names and isinstance(tf.names[c.name].node, TypeInfo):
                info = tf.names[c.name].node
            if info is not None:
                for b in info.mro[1:]:
                    for (f, old), new in members.items():
                        if f == b.fullname and old in info.names and old not in mine:
                            mine[old] = new
                            warn.append(f"OVERRIDE {full}.{old}->{new}")
            for s in c.body:
                nodes = [s]
                if isinstance(s, (ast.If, ast.With)):
                    nodes += s.body
                for s in nodes:
                    if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name in mine:
                        pos = find_name(p, s.lineno, s.col_offset, s.name)
                        edit(p, *pos, s.name, mine[s.name])
                        seen_def.add((full, s.name))
                        for d in s.decorator_list:
                            if isinstance(d, ast.Attribute) and isinstance(d.value, ast.Name) and d.value.id == s.name:
                                edit(p, d.lineno, d.col_offset, s.name, mine[s.name])
                    if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.target.id in mine:
                        edit(p, s.target.lineno, s.target.col_offset, s.target.id, mine[s.target.id])
                        seen_def.add((full, s.target.id))
                    if isinstance(s, ast.Assign):
                        for t in s.targets:
                            for x in ast.walk(t):
                                if isinstance(x, ast.Name) and x.id in mine:
                                    edit(p, x.lineno, x.col_offset, x.id, mine[x.id])
                                    seen_def.add((full, x.id))
                        if any(isinstance(t, ast.Name) and t.id in ("__slots__", "__match_args__") for t in s.targets):
                            for x in ast.walk(s.value):
                                if isinstance(x, ast.Constant) and x.value in mine:
                                    edit(p, x.lineno, x.col_offset + 1, x.value, mine[x.value])
                    # uses of a class variable in the body
                    for x in ast.walk(s):
                        if (
                            isinstance(x, ast.Name)
                            and isinstance(x.ctx, ast.Load)
                            and x.id in mine
                            and not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))
                        ):
                            edit(p, x.lineno, x.col_offset, x.id, mine[x.id])
            for x in ast.walk(c):
                if (
                    isinstance(x, ast.Attribute)
                    and isinstance(x.value, ast.Name)
                    and x.value.id == "self"
                    and x.attr in mine
                ):
                    seen_def.add((full, x.attr))
                    edit(p, x.end_lineno, x.end_col_offset - len(x.attr.encode()), x.attr, mine[x.attr])
    for k in members:
        if k not in seen_def:
            warn.append(f"NOT FOUND member {k}")
    # unresolved: rename when every class in the project that defines the name is renamed to the same
    stilldef = collections.defaultdict(set)
    for p in FILES:
        for c in ast.walk(TREE[p]):
            if isinstance(c, ast.ClassDef):
                for s in c.body:
                    nm = (
                        s.name
                        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))
                        else s.target.id
                        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                        else None
                    )
                    if nm in names_renamed:
                        if (module_of(p) + "." + c.name, nm) not in members:
                            stilldef[nm].add(module_of(p) + "." + c.name)
    for p in FILES:
        for c in ast.walk(TREE[p]):
            if isinstance(c, ast.ClassDef):
                for x in ast.walk(c):
                    if (
                        isinstance(x, ast.Attribute)
                        and isinstance(x.ctx, ast.Store)
                        and isinstance(x.value, ast.Name)
                        and x.value.id == "self"
                        and x.attr in names_renamed
                        and (module_of(p) + "." + c.name, x.attr) not in members
                    ):
                        stilldef[x.attr].add(module_of(p) + "." + c.name)
    for p, line, col, name in unresolved:
        if (line, col - len(name)) in edits[p]:
            continue
        if len(byname[name]) == 1 and not stilldef[name]:
            edit(p, line, col - len(name), name, next(iter(byname[name])), "by name")
        else:
            warn.append(f"UNRESOLVED {p}:{line} .{name} -> {sorted(byname[name])} also {sorted(stilldef[name])[:4]}")

# ---- locals
if "locals" in only:
    for l in plan["locals"]:
        scope, old, new = l["scope"], l["old"], l["new"]
        mod = scope
        while mod and mod not in MODS:
            mod = mod.rpartition(".")[0]
        if not mod:
            warn.append(f"NOT FOUND scope {scope}")
            continue
        p = MODS[mod]
        node = TREE[p]
        ok = True
        for part in scope[len(mod) + 1 :].split(".") if len(scope) > len(mod) else []:
            nxt = [
                c
                for c in ast.walk(node)
                if isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and c.name == part
                and c is not node
            ]
            if not nxt:
                ok = False
                break
            node = nxt[0]
        if not ok:
            warn.append(f"NOT FOUND scope {scope}")
            continue
        hit = 0
        for c in ast.walk(node):
            if isinstance(c, ast.Name) and c.id == old:
                edit(p, c.lineno, c.col_offset, old, new)
                hit += 1
            if isinstance(c, ast.arg) and c.arg == old:
                edit(p, c.lineno, c.col_offset, old, new)
                hit += 1
            if isinstance(c, (ast.MatchAs,)) and c.name == old:
                pos = find_name(p, c.lineno, c.col_offset, old)
                edit(p, *pos, old, new)
                hit += 1
            if isinstance(c, ast.keyword) and False:
                pass
        if not hit:
            warn.append(f"NOT FOUND local {scope} {old}")
        if any(isinstance(c, ast.arg) and c.arg == old for c in ast.walk(node)):
            params[(scope.rpartition(".")[2], old)] = new

# ---- tokens
if "tokens" in only:
    given = {t["old"] for t in plan["tokens"]}
    for t in list(plan["tokens"]):
        if not t["old"].startswith("_") and t["old"][0].islower() and "_" + t["old"] not in given:
            plan["tokens"].append({**t, "old": "_" + t["old"], "new": "_" + t["new"], "auto": 1})
    for t in plan["tokens"]:
        hits = 0
        for p in FILES:
            if not any(str(p) == q or str(p).startswith(q.rstrip("/") + "/") for q in t["paths"]):
                continue
            if not re.search(rf"\b{t['old']}\b", SRC[p]):
                continue
            exist = re.search(rf"\b{t['new']}\b", SRC[p])
            n = 0
            for k in tokenize.generate_tokens(io.StringIO(SRC[p]).readline):
                if k.type == tokenize.NAME and k.string == t["old"]:
                    line, col = k.start
                    edit(
                        p,
                        line,
                        len(k.line.split("\n")[0][:col].encode())
                        if False
                        else len(SRC[p].split("\n")[line - 1][:col].encode()),
                        t["old"],
                        t["new"],
                    )
                    n += 1
                elif k.type == tokenize.STRING and re.match(r"[rb]*f", k.string.lower()):
                    # f-strings before 3.12: identifiers in braces
                    for mm in re.finditer(r"\{[^{}]*\}", k.string):
                        for x in re.finditer(rf"(?<![\w'\"]){t['old']}(?![\w'\"])", mm.group()):
                            off = mm.start() + x.start()
                            head = k.string[:off]
                            line = k.start[0] + head.count("\n")
                            col = (k.start[1] + off) if "\n" not in head else off - head.rfind("\n") - 1
                            edit(p, line, len(SRC[p].split("\n")[line - 1][:col].encode()), t["old"], t["new"])
                            n += 1
            hits += n
            if n and exist:
                warn.append(f"EXISTS {p}: {t['old']} -> {t['new']} which is there already")
        if not hits and not t.get("auto"):
            warn.append(f"NOT FOUND token {t}")

total = 0
for p, es in edits.items():
    lines = list(LINES[p])
    for (line, col), (old, new) in sorted(es.items(), reverse=True):
        b = lines[line - 1]
        lines[line - 1] = b[:col] + new.encode() + b[col + len(old.encode()) :]
        total += 1
    if not dry:
        (ROOT / p).write_bytes(b"\n".join(lines))
print(total, "edits in", sum(1 for e in edits.values() if e), "files")
for w in sorted(set(warn)):
    print(w)
