"""How all sites look: one layout with the macros that their pages use, its style, and a little JavaScript.

Every control has a name of its own on its page. The JavaScript helps and is not needed: buttons beside a number,
a counter below a text, one box that ticks all, a filter over the rows of a list that is already there, cards that
say more while the mouse is on them and are dragged from column to column.
"""

__all__ = ["LAYOUT", "MACROS", "WRONG"]

_STYLE = """
:root{--ink:#1d2430;--soft:#5b6577;--line:#d9dee6;--paper:#fff;--shade:#f4f6f9;--main:#1f5fa8}
*{box-sizing:border-box}body{margin:0;font:15px/1.45 "DejaVu Sans",sans-serif;color:var(--ink);background:var(--shade)}
header{background:var(--main);color:#fff;padding:.6rem 1rem;display:flex;gap:1rem;align-items:center;flex-wrap:wrap}
header a{color:#fff;text-decoration:none}header .brand{font-weight:700;font-size:1.15rem}header nav{display:flex;gap:.9rem}
header form{margin-left:auto}main{max-width:62rem;margin:1rem auto;background:var(--paper);padding:1rem 1.5rem;
border:1px solid var(--line);border-radius:6px}h1{font-size:1.4rem;margin:.2rem 0 .8rem}a{color:var(--main)}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.35rem .5rem;border-bottom:1px solid var(--line);
vertical-align:top}form.row{display:flex;gap:.6rem;flex-wrap:wrap;align-items:end;margin:.5rem 0}label{display:block}
input,select,textarea,button{font:inherit;padding:.3rem .45rem;border:1px solid #aab3c0;border-radius:4px}
textarea{width:100%;min-height:6rem}button{background:var(--main);color:#fff;cursor:pointer}button.small{padding:.1rem .4rem}
.said{max-width:62rem;margin:1rem auto 0;padding:.5rem 1rem;background:#fff8dc;border:1px solid #e0cf8a;border-radius:6px}
.soft{color:var(--soft)}.tag{background:var(--shade);border:1px solid var(--line);border-radius:9px;padding:0 .5rem}
article{border:1px solid var(--line);border-radius:6px;padding:.5rem .9rem;margin:.6rem 0}pre{white-space:pre-wrap;font:inherit}
.board{display:flex;gap:.6rem;align-items:stretch}.column{flex:1;background:var(--shade);padding:0 .5rem 4rem;border-radius:6px}
.column h2{font-size:1rem}.card{background:var(--paper);cursor:grab}
.more:not(.seen){visibility:hidden}footer{max-width:62rem;margin:0 auto 2rem;color:var(--soft);font-size:.85rem}
"""

_SCRIPT = """
document.addEventListener("click", e => {
  const by = e.target.dataset && e.target.dataset.step;
  if (by) { const f = document.getElementById(e.target.dataset.for);
    f.value = Math.min(+f.max || 99, Math.max(+f.min || 0, (+f.value || 0) + +by)); }
  if (e.target.dataset && e.target.dataset.all !== undefined)
    document.querySelectorAll("input[name=" + e.target.dataset.all + "]").forEach(b => b.checked = e.target.checked);
});
document.addEventListener("input", e => {
  const d = e.target.dataset || {};
  if (d.count) document.getElementById(d.count).textContent = e.target.value.length + " characters";
  if (d.filter) { const t = e.target.value.toLowerCase();
    document.querySelectorAll(d.filter + " tbody tr").forEach(r => r.hidden = !r.textContent.toLowerCase().includes(t)); }
});
const near = (e, what) => e.target.closest ? e.target.closest(what) : null;
document.addEventListener("mouseover", e => { const card = near(e, "[data-card]");
  document.querySelectorAll("[data-card] .more").forEach(m => m.classList.toggle("seen", m.parentElement === card)); });
document.addEventListener("dragstart", e => { const card = near(e, "[data-card]");
  if (card) e.dataTransfer.setData("text/plain", card.dataset.card); });
document.addEventListener("dragover", e => { if (near(e, "[data-column]")) e.preventDefault(); });
document.addEventListener("drop", e => { const column = near(e, "[data-column]"), name = e.dataTransfer.getData("text/plain");
  const card = [...document.querySelectorAll("[data-card]")].find(c => c.dataset.card === name);
  if (!column || !card) return;
  e.preventDefault(); const form = card.querySelector("form");
  form.querySelector("select").value = column.dataset.column; form.requestSubmit(); });
"""

MACROS = """{% macro pages(list, args) %}
{% if list.last > 1 %}
<nav aria-label="Pages"><p>
{% if list.page > 1 %}<a href="?{{ dict(args, page=list.page - 1)|urlencode }}">Previous page</a>{% endif %}
Page {{ list.page }} of {{ list.last }} ({{ list.total }} in all)
{% if list.page < list.last %}<a href="?{{ dict(args, page=list.page + 1)|urlencode }}">Next page</a>{% endif %}
</p></nav>
{% else %}<p class="soft">{{ list.total }} in all</p>{% endif %}
{% endmacro %}
{% macro text(label, name, value="", kind="text") %}
<label>{{ label }} <input type="{{ kind }}" name="{{ name }}" value="{{ value }}"></label>
{% endmacro %}
{% macro area(label, name, value="") %}
<label>{{ label }} <textarea name="{{ name }}" data-count="count-{{ name }}">{{ value }}</textarea></label>
<p class="soft" id="count-{{ name }}"></p>
{% endmacro %}
{% macro pick(label, name, among, chosen="", any="") %}
<label>{{ label }} <select name="{{ name }}">
{% if any %}<option value="">{{ any }}</option>{% endif %}
{% for one in among %}<option{{ " selected" if one|string == chosen|string else "" }}>{{ one }}</option>{% endfor %}
</select></label>
{% endmacro %}
{% macro act(path, label, hidden={}, small=True) %}
<form method="post" action="{{ path }}" style="display:inline">
{% for name, value in hidden.items() %}<input type="hidden" name="{{ name }}" value="{{ value }}">{% endfor %}
<button{% if small %} class="small"{% endif %}>{{ label }}</button></form>
{% endmacro %}
{% macro file(label, name) %}
<label>{{ label }} <input type="file" name="{{ name }}"></label>
{% endmacro %}
{% macro amount(label, name, value, least, most, id) %}
<label>{{ label }} <input type="number" id="{{ id }}" name="{{ name }}" value="{{ value }}" min="{{ least }}" max="{{ most }}"></label>
<button type="button" class="small" data-step="-1" data-for="{{ id }}">{{ label }}: one less</button>
<button type="button" class="small" data-step="1" data-for="{{ id }}">{{ label }}: one more</button>
{% endmacro %}
"""

LAYOUT = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }} - {{ site.title }}</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><style>"""
    + _STYLE
    + """</style></head>
<body><header><a class="brand" href="/">{{ site.title }}</a>
<nav aria-label="Main">{% for name, path in site.nav.items() %}<a href="{{ path }}">{{ name }}</a>{% endfor %}</nav>
{% if site.search %}<form role="search" action="{{ site.search }}"><input name="q" aria-label="Search {{ site.title }}">
<button>Search</button></form>{% endif %}
<span>Signed in as {{ site.me }}</span></header>
{% if said %}<p class="said" role="status">{{ said }}</p>{% endif %}
<main><h1>{{ title }}</h1>
{% include content %}
</main><footer>{{ site.title }}. Today is {{ today }}.</footer>
<script>"""
    + _SCRIPT
    + """</script></body></html>
"""
)

WRONG = """<p>{{ text }}</p><p><a href="/">To the start page</a></p>"""
