"""The style sheet and the few lines of script of a report.

Colours are from the Okabe-Ito palette, darkened or lightened until each has enough contrast with
the card behind it; marks differ in shape and lines in dashes, so that no reading needs colour.
"""

COLOURS = """
:root{color-scheme:light dark;--bg:#f3f5f8;--card:#fff;--ink:#17202b;--soft:#566273;--line:#dde3ea;
--ghost:#c3ccd6;--grid:#e8ecf1;--evolution:#0b68b0;--random:#c4570a;--best:#f2b701;--edge:#17202b;--extreme:#8a3f94;
--sampled:#0b7f62;--train:#7a8696;--tint:#0b68b012;--code:#f3f5f8;--good:#0b7f62;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--bg:#0e1217;--card:#171d25;--ink:#e8edf3;--soft:#9eabba;
--line:#2b3541;--ghost:#465260;--grid:#242d38;--evolution:#5db2f0;--random:#f19a4d;--best:#ffd23f;
--edge:#0e1217;--extreme:#d79be0;--sampled:#45c9a3;--train:#8d9bab;--tint:#5db2f018;--code:#0e1217;--good:#45c9a3;
--bad:#ff8a80}}
"""

# What is kept of a network, which is also a picture of its own.
KEPT = """
.kept text{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
fill:var(--ink);font-variant-numeric:tabular-nums}
.kept .note,.kept .name{fill:var(--soft)}
.kept .gone{text-decoration:line-through;opacity:.65}
.kept .bar{fill:var(--sampled);pointer-events:none}
.kept .rail{fill:var(--grid);stroke:var(--ghost);stroke-width:1}
.kept .none{fill:none;stroke-dasharray:3 3}
"""

_PAGE = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1060px;margin:0 auto;padding:40px 24px 72px}
header{padding:8px 4px 4px}
.eyebrow{color:var(--soft);font-size:14px;margin:0 0 10px}
h1{font-size:clamp(26px,4vw,39px);line-height:1.14;letter-spacing:-.022em;margin:0 0 16px;
font-weight:700;text-wrap:balance;max-width:24em}
h1 b{color:var(--evolution);font-weight:700}
header p.lead{font-size:17px;color:var(--soft);max-width:46em;margin:0 0 26px;text-wrap:pretty}
h2{font-size:21px;letter-spacing:-.012em;line-height:1.25;margin:0 0 6px;text-wrap:balance}
h3{font-size:15px;margin:22px 0 6px}
section{background:var(--card);border:1px solid var(--line);border-radius:14px;
padding:26px 28px 24px;margin:20px 0}
section>p{max-width:48em;margin:0 0 14px;text-wrap:pretty}
section>p.say{color:var(--soft)}
.note-line{color:var(--soft);font-size:14px}
.tiles{display:grid;grid-template-columns:repeat(var(--columns),1fr);gap:12px;margin:0}
.tiles>div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px}
.tiles dt{color:var(--soft);font-size:13px;line-height:1.3}
.tiles dd{margin:0}
.tiles .big{font-size:25px;font-weight:650;letter-spacing:-.02em;line-height:1.35;
font-variant-numeric:tabular-nums;white-space:nowrap}
.tiles .sub{color:var(--soft);font-size:12.5px;line-height:1.35}
.good{color:var(--good)!important}.bad{color:var(--bad)!important}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
fill:var(--ink);font-variant-numeric:tabular-nums}
svg.narrow{display:none}
svg .tick,svg .note{fill:var(--soft);font-size:12.5px}
svg .name{fill:var(--soft);font-size:13px}
svg .value{font-size:12.5px}
svg .label{font-weight:650;paint-order:stroke;stroke:var(--card);stroke-width:4px;
stroke-linejoin:round}
.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--soft);fill:none;opacity:.7}
.line{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round}
.mark{stroke:var(--card);stroke-width:1}
.evolution{color:var(--evolution)}.random{color:var(--random)}.largest,.smallest,.extreme{
color:var(--extreme)}.sampled{color:var(--sampled)}.train{color:var(--train)}
.mark.evolution,.mark.extreme,.mark.largest,.mark.smallest,.mark.sampled,.mark.train{fill:currentColor}
.mark.lane0,.mark.lane1,.mark.lane2,.mark.lane3{fill:currentColor}
.mark.random{fill:var(--card);stroke:var(--random);stroke-width:1.5}
.mark.late1{fill-opacity:.35;stroke-opacity:.6}.mark.late2{fill-opacity:.62;stroke-opacity:.75}
.mark.late3{fill-opacity:.92}
.mark.random.late1,.mark.random.late2,.mark.random.late3{fill-opacity:0;stroke-opacity:.75}
.mark.best{fill:var(--best);stroke:var(--edge);stroke-width:1.4;stroke-linejoin:round}
.line.random{stroke-dasharray:7 4}.line.smallest{stroke-dasharray:2 4}
.line.largest{stroke-dasharray:9 4}.line.train{stroke-width:1.4;opacity:.85}
.line.train.strong{stroke:var(--evolution);stroke-width:2;opacity:1}
.front{color:var(--ink)}.line.front{stroke-width:1.6}
.spread{fill:var(--sampled);fill-opacity:.17}
.budget{fill:var(--tint)}.bound{stroke:var(--evolution);stroke-dasharray:3 4;opacity:.7;fill:none}
.mark.hit:hover{stroke:var(--ink);stroke-width:2.5;fill-opacity:1;stroke-opacity:1}
.strip{fill:var(--ink);fill-opacity:0}.strip:hover{fill-opacity:.07}
.ghost{fill:none;stroke:var(--ghost);stroke-width:1}.ghost.off{stroke-dasharray:3 3}
.paper{fill:var(--card)}.paper.ghost{fill:var(--card)}
.stream{fill:var(--train);fill-opacity:.38}.wire{stroke:var(--train);stroke-opacity:.55}
.head{fill:var(--evolution)}.mlp{fill:var(--sampled)}
.arrowhead{fill:var(--ink)}.nothing{fill:none;stroke:var(--soft);stroke-dasharray:3 3}
.lane0{color:var(--evolution)}.lane1{color:var(--random)}.lane2{color:var(--sampled)}.lane3{color:var(--extreme)}.line.lane0,.line.lane1,.line.lane2,.line.lane3{stroke-width:1.4}
.box{fill:var(--card);stroke:var(--soft);stroke-width:1.2}
svg .off{opacity:.65}
.block0{fill:var(--evolution)}.block1{fill:var(--sampled)}.block2{fill:var(--random)}
.block3{fill:var(--extreme)}.block4{fill:var(--soft)}
.block-idle{fill:none;stroke:var(--ghost);stroke-dasharray:3 3}
svg .letter{font-weight:650;font-size:12px}svg .number{font-size:12px}
svg .letter.on,svg .number.on{fill:var(--card)}
.shade{fill:var(--ink)}.most{fill:none;stroke:var(--best);stroke-width:2.5;pointer-events:none}
rect.ghost,.letter,.number{pointer-events:none}
img.motion{max-width:100%;height:auto;border-radius:8px;background:#fff}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;padding:0;margin:6px 0 14px;
font-size:14px;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:7px}
.legend svg{width:26px;height:16px;flex:none}
.pair{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:28px;margin-top:22px}
table{border-collapse:collapse;width:100%;font-size:15px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:8px 0 8px 14px;border-bottom:1px solid var(--line);
vertical-align:baseline}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:500;font-size:13.5px;vertical-align:bottom}
td.size{white-space:nowrap}tbody th{font-weight:600}tbody tr:last-child>*{border-bottom:0}
table.plain th,table.plain td{text-align:left;vertical-align:top;overflow-wrap:break-word}
table.plain tbody th{font-weight:500;color:var(--soft);white-space:nowrap;
font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13px;padding-right:8px}
tr.first th,tr.first td{font-weight:650}
.facts{columns:2;column-gap:44px;margin:0;font-size:14px}
.facts>div{display:flex;justify-content:space-between;gap:18px;padding:6px 0;break-inside:avoid;
border-bottom:1px solid var(--line)}
.facts dt{color:var(--soft);font:13px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.facts dd{margin:0;text-align:right;overflow-wrap:anywhere;min-width:0;
font-variant-numeric:tabular-nums}
pre+.note-line{margin-top:10px}pre+.say{margin-top:16px}section>svg+.note-line{margin-bottom:0}
.scroll{overflow-x:auto}
.splits{display:flex;gap:3px;height:34px;margin:14px 0 16px}
.splits div{border-radius:5px;min-width:6px}
.s-train{background:var(--train)}.s-search{background:var(--evolution)}
.s-validation{background:var(--sampled)}.s-test{background:var(--best)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:8px}
pre{background:var(--code);border:1px solid var(--line);border-radius:9px;padding:13px 15px;
overflow-x:auto;margin:8px 0 0;
font:13.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
details{margin-top:14px}summary{cursor:pointer;color:var(--soft);font-size:14px}
.tip{position:fixed;z-index:9;max-width:360px;padding:8px 11px;border-radius:8px;
white-space:pre-wrap;background:var(--ink);color:var(--card);font-size:12.5px;line-height:1.45;
pointer-events:none;font-variant-numeric:tabular-nums}
@media (max-width:900px){.tiles{grid-template-columns:repeat(3,1fr)}}
@media (max-width:680px){
main{padding:22px 12px 48px}section{padding:20px 16px;border-radius:12px}
.tiles{grid-template-columns:1fr 1fr;gap:8px}
.tiles>div{padding:12px 13px}.tiles .big{font-size:22px}
svg.wide{display:none}svg.narrow{display:block}.pair{grid-template-columns:1fr;gap:20px}
table{font-size:14px}th,td{padding:7px 0 7px 8px}thead th{font-size:12px;white-space:normal}
.figures thead{display:none}.figures tr{display:grid;grid-template-columns:repeat(3,1fr);gap:4px 10px;
padding:10px 0;border-bottom:1px solid var(--line)}.figures tr:last-child{border:0}
.figures th,.figures td{border:0;padding:0;text-align:left}.figures th{grid-column:1/-1}
.figures td:empty{display:none}
.figures td::before{content:attr(data-name);display:block;color:var(--soft);font-weight:400;font-size:11.5px;
line-height:1.3}
.facts{columns:1}header p.lead{font-size:16px}
pre{font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere}}
@media print{body{background:#fff}section,.tiles>div{break-inside:avoid}}
"""

CSS = COLOURS + _PAGE + KEPT

# Shows the title of the mark under the pointer at once; without it the browser shows it later.
SCRIPT = """
(function(){var tip=document.createElement('div'),now=null;tip.className='tip';tip.hidden=true;
document.body.appendChild(tip);
function leave(){if(now){now.hit.insertBefore(now.title,now.hit.firstChild);now=null;
tip.hidden=true}}
document.addEventListener('pointermove',function(e){
var hit=e.target.closest?e.target.closest('.hit'):null;
if(!now||now.hit!==hit){leave();var t=hit&&hit.querySelector('title');
if(t){now={hit:hit,title:t};t.remove();tip.textContent=t.textContent;tip.hidden=false}}
if(now){var w=tip.offsetWidth,h=tip.offsetHeight,x=e.clientX+14,y=e.clientY+16;
if(x+w>innerWidth-8)x=Math.max(8,e.clientX-w-12);if(y+h>innerHeight-8)y=e.clientY-h-12;
tip.style.left=x+'px';tip.style.top=y+'px'}});
document.addEventListener('pointerleave',leave);window.addEventListener('scroll',leave)})();
"""
