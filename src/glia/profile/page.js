"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colorOf = (name) => css("--" + name) || css("--sync");
const GUTTER = 104, ROW = 26, AXIS = 24, INSET = 3, NS = 1e-3;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function scaled(value, units) {
  for (const [unit, size] of units) if (Math.abs(value) >= size) return trim(value / size) + " " + unit;
  const [unit, size] = units[units.length - 1];
  return trim(value / size) + " " + unit;
}
const trim = (x) => x === 0 ? "0" : Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : Number(x.toPrecision(3)).toString();
const time = (ns) => scaled(ns, [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]]);
const bytes = (n) => scaled(n, [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024], ["B", 1]]);
const rate = (f) => scaled(f, [["Pflop/s", 1e15], ["Tflop/s", 1e12], ["Gflop/s", 1e9], ["Mflop/s", 1e6], ["flop/s", 1]]);
const percent = (x) => x === 0 ? "0 %" : (100 * x).toFixed(x < 0.1 ? 2 : 1) + " %";

// Times of slices are picoseconds in the data and nanoseconds here.
const begin = data.begin * NS, end = data.end * NS, latency = data.latency * NS;
const slices = data.slices.map(([track, lane, from, to, text, count, busy]) => ({
  track, lane, start: from * NS, end: to * NS, text, count: count || 1, busy: (count ? busy : to - from) * NS, found: false,
}));

// The time axis: nanoseconds -> shown time, with repeated iterations folded to a narrow band.
let folds = [], view = [0, 1], shown = 1;
function foldAxis(isFolded) {
  folds = [];
  const sorted = isFolded ? data.skips.map(([v, from, to, n]) => [v, from * NS, to * NS, n]) : [];
  const hidden = sorted.reduce((sum, s) => sum + s[2] - s[1], 0);
  const width = Math.max(1, (end - begin - hidden) * Math.min(0.07, 0.5 / Math.max(1, sorted.length)));
  let removed = 0, last = -Infinity;
  for (const [variable, start, stop, iterations] of sorted) {
    if (start < last) continue;
    folds.push({ variable, start, stop, iterations, at: start - removed, width });
    removed += stop - start - width;
    last = stop;
  }
  shown = latency - removed;
  fitRun();
}
function toShown(ns) {
  let low = 0, high = folds.length;
  while (low < high) { const mid = (low + high) >> 1; if (folds[mid].start <= ns) low = mid + 1; else high = mid; }
  if (!low) return ns;
  const fold = folds[low - 1];
  if (ns >= fold.stop) return fold.at + fold.width + ns - fold.stop;
  return fold.at + fold.width * (ns - fold.start) / (fold.stop - fold.start);
}
function toTime(at) {
  let found = null;
  for (const fold of folds) if (fold.at <= at) found = fold;
  if (!found) return at;
  if (at >= found.at + found.width) return found.stop + at - found.at - found.width;
  return found.start + (at - found.at) / found.width * (found.stop - found.start);
}
function fit(from, to) {
  const margin = Math.max(1, to - from) * 0.01;
  view = [from - margin, to + margin];
}
const fitAll = () => fit(0, shown);
const fitRun = () => fit(begin, shown - (latency - end));
const pixel = (ns, width) => GUTTER + (toShown(ns) - view[0]) / (view[1] - view[0]) * (width - GUTTER);

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio);
  c.font = "12px ui-sans-serif, system-ui, sans-serif";
  c.textBaseline = "middle";
  return [c, width];
}
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((m) => power * m >= least);
}
function drawAxis(c, width, height, labelled) {
  const step = niceStep((view[1] - view[0]) / Math.max(2, (width - GUTTER) / 110));
  c.strokeStyle = css("--line");
  c.fillStyle = css("--dim");
  c.textAlign = "center";
  let last = -Infinity;
  for (let ns = Math.ceil(toTime(view[0]) / step) * step, n = 0; toShown(ns) < view[1] && n < 400; ns += step, n++) {
    const fold = folds.find((f) => f.start < ns && ns < f.stop);
    if (fold) { ns = Math.floor(fold.stop / step) * step; continue; }
    const x = pixel(ns, width);
    if (x < GUTTER || x - last < 60) continue;
    last = x;
    c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height - (labelled ? AXIS : 0)); c.stroke();
    if (labelled && x < width - 24) c.fillText(axisTime(ns, step), x, height - AXIS / 2 + 2);
  }
}
function axisTime(ns, step) {
  const [unit, size] = ns >= 1e6 && step >= 1e3 ? ["ms", 1e6] : ["µs", 1e3];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  return (ns / size).toFixed(Math.min(digits, 4)) + " " + unit;
}
function drawFolds(c, width, height, labelled) {
  for (const fold of folds) {
    const left = Math.max(GUTTER, pixel(fold.start, width)), right = Math.min(width, pixel(fold.stop, width));
    if (right <= left) continue;
    c.fillStyle = css("--fold");
    c.fillRect(left, 0, right - left, height);
    if (!labelled || right - left < 14) continue;
    c.save();
    c.translate((left + right) / 2, height / 2);
    c.rotate(-Math.PI / 2);
    c.fillStyle = css("--dim");
    c.textAlign = "center";
    c.fillText(fold.iterations.toLocaleString("en") + " more of " + fold.variable, 0, 0, height - 8);
    c.restore();
  }
}

const perTrack = data.tracks.map(() => []);
for (const slice of slices) perTrack[slice.track].push(slice);
function drawTimeline() {
  const height = data.tracks.length * ROW + AXIS;
  const [c, width] = prepare(byId("timeline"), height);
  drawAxis(c, width, height, true);
  data.tracks.forEach(([title, color, lanes], number) => {
    const y = number * ROW;
    if (number % 2 === 0) {
      c.globalAlpha = 0.55; c.fillStyle = css("--row"); c.fillRect(0, y, width, ROW); c.globalAlpha = 1;
    }
    c.fillStyle = css("--text");
    c.textAlign = "left";
    c.fillText(title, 6, y + ROW / 2 + 1, GUTTER - 12);
    const height = (ROW - 2 * INSET) / lanes;
    for (let lane = 0; lane < lanes; lane++) {
      const inLane = perTrack[number].filter((slice) => slice.lane === lane);
      drawSlices(c, width, inLane, y + INSET + lane * height, height, colorOf(color));
    }
  });
  drawFolds(c, width, height - AXIS, true);
}
// Neighbours closer than a pixel are drawn as one. A block is as high as its engine was busy.
function drawSlices(c, width, inLane, y, height, color) {
  const labelled = [];
  let from = -1, to = -1, isFound = false;
  const flush = () => {
    if (to < 0) return;
    c.fillStyle = isFound ? css("--mark") : color;
    c.fillRect(from, y, Math.max(0.7, to - from - (to - from > 4 ? 0.8 : 0)), height);
  };
  for (const slice of inLane) {
    const left = Math.max(GUTTER, pixel(slice.start, width)), right = Math.min(width, pixel(slice.end, width));
    if (right < GUTTER || left > width || right < left) continue;
    if (right - left > 56 && height > 12) labelled.push([slice, left, right]);
    if (slice.count > 1 && right - left > 3) {
      flush();
      [from, to] = [-1, -1];
      drawBlock(c, slice, left, right, y, height, color);
      continue;
    }
    if (to >= 0 && left - to < 0.3 && right - from < 3) { to = Math.max(to, right); isFound = isFound || slice.found; continue; }
    flush();
    [from, to, isFound] = [left, right, slice.found];
  }
  flush();
  for (const [slice, left, right] of labelled) {
    const name = data.texts[slice.text][0], isPale = slice.count > 1 && shareOf(slice) < 0.6;
    drawInside(c, slice.count > 1 ? countText(slice.count) : name, left, y, right - left, height, isPale ? css("--text") : "#fff");
  }
}
const shareOf = (slice) => Math.min(1, slice.busy / Math.max(1e-3, slice.end - slice.start));
function drawBlock(c, slice, left, right, y, height, color) {
  const share = shareOf(slice);
  c.fillStyle = slice.found ? css("--mark") : color;
  c.globalAlpha = 0.35;
  c.fillRect(left, y, right - left, height);
  c.globalAlpha = 1;
  c.fillRect(left, y + height * (1 - share), right - left, height * share);
}
const countText = (count) => count.toLocaleString("en") + " instructions";
function drawInside(c, text, x, y, width, height, color = "#fff") {
  c.save();
  c.beginPath();
  c.rect(x, y, width - 4, height);
  c.clip();
  c.fillStyle = color;
  c.textAlign = "left";
  c.font = "11px ui-sans-serif, system-ui, sans-serif";
  c.fillText(text, x + 6, y + height / 2 + 0.5);
  c.restore();
}

function hue(name) {
  let hash = 7;
  for (const char of name) hash = (hash * 31 + char.codePointAt(0)) >>> 0;
  return (hash * 137) % 360;
}
const memoryRows = { SBUF: [], PSUM: [] };
for (const [memory, name, address, size, partitions, from, to] of data.residences) {
  memoryRows[memory].push({ name, address, size, partitions, start: from * NS, end: to * NS });
}
const memoryTop = {};
function drawMemory(memory) {
  const canvas = byId(memory), rows = memoryRows[memory], shades = data.occupancy[memory], capacity = data.memories[memory];
  const [tiles, used] = data.tiles[memory];
  const top = memoryTop[memory] = used > capacity / 4 ? Math.max(capacity, used) : Math.max(64, used * 1.1);
  byId(memory.toLowerCase() + "note").textContent =
    tiles ? bytes(used) + " of " + bytes(capacity) + " per partition in use, " + tiles.toLocaleString("en") + (tiles === 1 ? " tile" : " tiles")
      + (shades.length ? "; the darker, the more is in use" : "") : "no placed tiles";
  const height = tiles ? (memory === "SBUF" ? 190 : 110) : 1;
  const [c, width] = prepare(canvas, height);
  if (!tiles) return;
  drawAxis(c, width, height, false);
  drawShades(c, width, height * used / top, height, shades);
  const light = css("--tile-light");
  for (const row of rows) {
    const left = Math.max(GUTTER, pixel(row.start, width)), right = Math.min(width, pixel(row.end, width));
    if (right <= left) continue;
    const y = height * (1 - (row.address + row.size) / top), h = Math.max(1, height * row.size / top - 0.7);
    c.fillStyle = `hsl(${hue(row.name)} ${css("--tile-color")} ${light})`;
    c.fillRect(left, y, Math.max(1, right - left), h);
    if (h > 13 && right - left > 50) drawInside(c, row.name, left, y, right - left, h, css("--text"));
  }
  c.fillStyle = css("--dim");
  c.textAlign = "left";
  c.fillText(bytes(top), 6, 9);
  c.fillText("0", 6, height - 8);
}
// Percent in use: rows of addresses from the bottom, columns of equal time.
function drawShades(c, width, filled, height, shades) {
  c.fillStyle = css("--tensor");
  shades.forEach((shares, row) => {
    const low = Math.round(height - filled * row / shades.length), high = Math.round(height - filled * (row + 1) / shades.length);
    shares.forEach((share, column) => {
      const edge = (n) => Math.round(pixel(data.latency_us * 1000 * n / shares.length, width));
      const left = Math.max(GUTTER, edge(column)), right = Math.min(width, edge(column + 1));
      if (!share || right <= left) return;
      c.globalAlpha = share / 100;
      c.fillRect(left, high, right - left, low - high);
    });
  });
  c.globalAlpha = 1;
}
function drawBandwidth() {
  const { begin_ns: first, interval_ns: step, read_gbps: read, written_gbps: written } = data.bandwidth;
  byId("traffic").hidden = !read.length;
  if (!read.length) return;
  const height = 90, peak = data.hbm_bytes_per_ns;
  const most = Math.max(...read.map((r, n) => r + written[n]));
  const top = Math.max(most * 1.08, most > peak / 3 ? peak * 1.05 : 1e-3);
  const [c, width] = prepare(byId("bandwidth"), height);
  drawAxis(c, width, height, false);
  const bar = (n, low, high, color) => {
    const left = Math.max(GUTTER, Math.round(pixel(first + n * step, width)));
    const right = Math.min(width, Math.max(left + 1, Math.round(pixel(first + (n + 1) * step, width))));
    if (right <= left || high <= low || pixel(first + (n + 1) * step, width) < GUTTER) return;
    c.fillStyle = color;
    c.fillRect(left, height * (1 - high / top), right - left, height * (high - low) / top);
  };
  read.forEach((r, n) => { bar(n, 0, r, css("--dma")); bar(n, r, r + written[n], css("--scalar")); });
  byId("trafficnote").textContent = "read, written above it; " + (peak <= top ? "line: peak" : "peak " + trim(peak) + " GB/s is above");
  if (peak <= top) {
    c.strokeStyle = css("--mark");
    c.beginPath(); c.moveTo(GUTTER, height * (1 - peak / top)); c.lineTo(width, height * (1 - peak / top)); c.stroke();
  }
  c.fillStyle = css("--dim");
  c.textAlign = "left";
  c.fillText(trim(top) + " GB/s", 6, 9);
  c.fillText("0", 6, height - 8);
}
function draw() { drawTimeline(); drawBandwidth(); drawMemory("SBUF"); drawMemory("PSUM"); }

// Zoom, pan, hover
const wholeView = () => [0, shown];
function zoom(factor, center) {
  const span = Math.max(1, Math.min((view[1] - view[0]) * factor, (wholeView()[1] - wholeView()[0]) * 1.2));
  const part = (center - view[0]) / (view[1] - view[0]);
  view = [center - span * part, center + span * (1 - part)];
  draw();
}
function pan(distance) {
  const [low, high] = wholeView(), middle = (view[0] + view[1]) / 2 + distance;
  if (middle < low || middle > high) return;
  view = [view[0] + distance, view[1] + distance];
  draw();
}
const center = () => (view[0] + view[1]) / 2;
function shownAt(canvas, x) {
  return view[0] + (x - GUTTER) / (canvas.clientWidth - GUTTER) * (view[1] - view[0]);
}
function listen(canvas, hover) {
  let grabbed = null;
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    zoom(Math.exp(e.deltaY * 0.0015), shownAt(canvas, Math.max(GUTTER, e.offsetX)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (e) => { grabbed = e.offsetX; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { grabbed = null; });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => { fitRun(); draw(); });
  canvas.addEventListener("pointermove", (e) => {
    if (grabbed !== null) {
      pan((grabbed - e.offsetX) / (canvas.clientWidth - GUTTER) * (view[1] - view[0]));
      grabbed = e.offsetX;
      return;
    }
    const lines = hover(e.offsetX, e.offsetY);
    if (lines) showTip(e, lines); else hideTip();
  });
}
function showTip(e, [title, ...lines]) {
  const tip = byId("tip");
  tip.replaceChildren(element("b", title), ...lines.filter(Boolean).map((l) => element("p", l)));
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}
function hideTip() { byId("tip").hidden = true; }
function hoverTimeline(x, y) {
  const number = Math.floor(y / ROW), width = byId("timeline").clientWidth;
  if (!perTrack[number] || x < GUTTER) return null;
  const lanes = data.tracks[number][2];
  const lane = Math.max(0, Math.min(lanes - 1, Math.floor((y - number * ROW - INSET) / ((ROW - 2 * INSET) / lanes))));
  const found = perTrack[number].find((s) => s.lane === lane && pixel(s.start, width) - 1 <= x && x <= pixel(s.end, width) + 1);
  if (!found) return null;
  const [opcode, operands, source] = data.texts[found.text], length = found.end - found.start;
  const when = "at " + time(found.start) + ", for " + time(length);
  if (found.count === 1) return [opcode, operands, source, when];
  return [countText(found.count), when + ", busy " + time(found.busy) + " (" + percent(found.busy / length) + ")",
    "the longest: " + opcode, operands, source];
}
function hoverBandwidth(x) {
  const { begin_ns: first, interval_ns: step, read_gbps: read, written_gbps: written } = data.bandwidth;
  const n = Math.floor((toTime(shownAt(byId("bandwidth"), x)) - first) / step);
  if (x < GUTTER || !(n in read)) return null;
  return ["HBM traffic", "read " + trim(read[n]) + " GB/s, written " + trim(written[n]) + " GB/s", "in " + time(step) + " from " + time(first + n * step)];
}

// Search: slices and rows of tables whose text has the words
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (line) => words.every((word) => line.toLowerCase().includes(word));
  const texts = data.texts.map((each) => words.length > 0 && matches(each.join(" ")));
  const found = slices.filter((slice) => { slice.found = texts[slice.text]; return slice.found; });
  for (const row of document.querySelectorAll("table.searched tr[data-text]")) {
    row.hidden = words.length > 0 && !matches(row.dataset.text);
  }
  byId("matches").textContent = !words.length ? "" : !found.length ? "nothing drawn matches"
    : found.length.toLocaleString("en") + (found.length === 1 ? " slice" : " slices") + "; Enter: next";
  draw();
  return found;
}
let lastMatch = -Infinity;
function showNext() {
  const found = search(byId("search").value);
  if (!found.length) return;
  const next = found.find((slice) => slice.start > lastMatch) || found[0];
  lastMatch = next.start;
  const from = toShown(next.start), to = toShown(next.end), around = Math.max((to - from) * 3, (view[1] - view[0]) / 4, 1);
  view = [(from + to - around) / 2, (from + to + around) / 2];
  draw();
}
function hoverMemory(memory) {
  return (x, y) => {
    const canvas = byId(memory), width = canvas.clientWidth;
    const address = (1 - y / canvas.clientHeight) * memoryTop[memory];
    const found = memoryRows[memory].find((r) => r.address <= address && address < r.address + r.size
      && pixel(r.start, width) <= x && x <= pixel(r.end, width));
    return found && [found.name, bytes(found.size) + " in " + found.partitions + " partitions at " + found.address,
      time(found.start) + " to " + time(found.end)];
  };
}

// The rest of the page
function fillCards() {
  const busiest = Object.entries(data.engines).sort((a, b) => b[1].busy_us - a[1].busy_us)[0];
  const hbm = data.hbm_gbps / data.hbm_bytes_per_ns;
  const cards = [
    [time(data.latency_us * 1000),
      "latency, " + data.latency_range_us.map((us) => time(us * 1000)).join(" to ")],
    [percent(data.mfu), "of the 16-bit matrix peak"],
    [trim(data.hbm_gbps) + " GB/s", "HBM traffic, " + percent(hbm) + " of peak"],
    [percent(busiest[1].utilization), busiest[0] + " engine busy, the busiest"],
    [data.instructions.toLocaleString("en"), "instructions"],
    [bytes(data.dma_bytes), "moved by DMA"],
  ];
  if (data.communication)
    cards.push([time(data.communication.exposed_us * 1000),
      "exchanges exposed, " + percent(data.communication.hidden_share) + " hidden"]);
  for (const [value, label] of cards) {
    const card = element("div", undefined, "card");
    card.append(element("b", value), element("span", label));
    byId("cards").append(card);
  }
}
function fillEngines() {
  const rows = [...Object.entries(data.engines), ...Object.entries(data.queues).map(([n, e]) => ["dma " + n, e])];
  for (const [name, engine] of rows) {
    const row = element("div", undefined, "engine"), track = element("div", undefined, "track");
    const bar = element("div");
    bar.style.width = 100 * engine.utilization + "%";
    bar.style.background = `var(--${name.startsWith("dma") ? "dma" : name})`;
    track.append(bar);
    row.append(element("span", name), track, element("span", percent(engine.utilization) + "  ·  " + time(engine.busy_us * 1000)));
    byId("engines").append(row);
  }
}
function fillTable(id, heads, rows, empty) {
  const table = byId(id);
  table.className = "searched";
  if (!rows.length) { table.append(element("caption", empty, "dim")); return; }
  const line = (cells, tag) => {
    const made = element("tr");
    if (tag === "td") made.dataset.text = cells.map((cell) => cell.text ?? cell).join(" ");
    cells.forEach((cell, n) => {
      const td = element(tag, cell.text ?? cell, heads[n][1] ? "number" : "");
      if (cell.color) {
        const dot = element("i");
        dot.style.background = `var(--${cell.color})`;
        td.prepend(dot);
      }
      made.append(td);
    });
    return made;
  };
  table.append(line(heads.map((h) => h[0]), "th"), ...rows.map((r) => line(r, "td")));
}
const engineCell = (name) => ({ text: name, color: name.startsWith("dma") ? "dma" : name });
function fillSources(id, head, rows) {
  fillTable(id, [[head], ["mostly on"], ["count", 1], ["busy", 1]], rows.map((r) => [r.more || r.source || "(unknown)",
    engineCell(Object.keys(r.tracks || {})[0] || ""), r.count.toLocaleString("en"), time(r.busy_ns)]), "no instructions");
}
function fillPath() {
  const rows = data.critical_path, covered = rows.reduce((sum, r) => sum + r.ns, 0);
  byId("pathnote").textContent = data.path_is_partial
    ? "of the first " + time(covered) + ", whose instructions have events of their own" : "the chain of instructions that delayed each other";
  fillTable("path", [["source line"], ["instruction"], ["count", 1], ["time", 1], ["share", 1]], rows.map((r) => [r.more || r.loc || "(unknown)",
    r.opcode || "", r.count.toLocaleString("en"), time(r.ns), percent(r.share)]), "no instructions");
}
function fillGroups() {
  byId("groupnote").textContent = data.more_groups ? "the first " + data.groups.length + " of " + (data.groups.length + data.more_groups) : "as the compiler emits them";
  byId("groups").append(...data.groups.map(([name, bound, ...facts]) => {
    const made = element("details"), list = element("ul");
    list.append(...facts.map((fact) => element("li", fact)));
    made.append(element("summary", name + "  ·  " + bound), list);
    return made;
  }));
  if (!data.groups.length) byId("groups").append(element("p", "no report: a kernel, or compiled by another version", "dim"));
}
function fillList(id, items, empty) {
  byId(id).append(...(items.length ? items : [empty]).map((text) => element("li", text)));
}
function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function fillRoofline() {
  const traffic = data.hbm_read_bytes + data.hbm_written_bytes;
  if (!data.flops || !traffic) { byId("roofline").append(element("p", "no matrix products to place", "dim")); return; }
  const W = 560, H = 300, L = 62, R = 14, T = 16, B = 34;
  const slope = data.hbm_bytes_per_ns * 1e9, most = data.peak_flops;
  const intensity = data.flops / traffic, achieved = data.flops / (data.latency_us * 1e-6);
  const xs = [Math.min(0.5, intensity / 3), Math.max(3000, intensity * 3)].map(Math.log10);
  const ys = [Math.min(most / 3000, achieved / 3), most * 2].map(Math.log10);
  const px = (v) => L + (Math.log10(v) - xs[0]) / (xs[1] - xs[0]) * (W - L - R);
  const py = (v) => H - B - (Math.log10(v) - ys[0]) / (ys[1] - ys[0]) * (H - T - B);
  const made = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Roofline" });
  const line = (x1, y1, x2, y2, color, width = 1) =>
    made.append(svg("line", { x1, y1, x2, y2, style: `stroke:${color};stroke-width:${width}` }));
  for (let p = Math.ceil(xs[0]); p <= xs[1]; p++) {
    line(px(10 ** p), T, px(10 ** p), H - B, "var(--line)");
    made.append(svg("text", { x: px(10 ** p), y: H - B + 15, "text-anchor": "middle" }, trim(10 ** p)));
  }
  for (let p = Math.ceil(ys[0]); p <= ys[1]; p++) {
    line(L, py(10 ** p), W - R, py(10 ** p), "var(--line)");
    made.append(svg("text", { x: L - 6, y: py(10 ** p) + 4, "text-anchor": "end" }, rate(10 ** p).replace("flop/s", "")));
  }
  line(px(Math.max(most / slope, 10 ** xs[0])), py(most), W - R, py(most), "var(--tensor)", 2);
  made.append(svg("text", { x: W - R - 2, y: py(most) - 4, "text-anchor": "end" }, "16-bit matrix peak  " + rate(most)));
  const low = Math.max(10 ** xs[0], 10 ** ys[0] / slope);
  line(px(low), py(low * slope), px(most / slope), py(most), "var(--dma)", 2);
  made.append(svg("text", { x: px(low) + 34, y: py(low * slope) - 4 }, "HBM " + trim(slope / 1e9) + " GB/s"));
  made.append(svg("circle", { cx: px(intensity), cy: py(achieved), r: 5.5, style: "fill:var(--mark)" }));
  const right = px(intensity) > W * 0.7;
  made.append(svg("text", { class: "point", x: px(intensity) + (right ? -10 : 10), y: py(achieved) + 4,
    "text-anchor": right ? "end" : "start" }, rate(achieved)));
  made.append(svg("text", { x: (L + W - R) / 2, y: H - 4, "text-anchor": "middle" }, "flops per HBM byte"));
  byId("roofline").append(made);
}
function start() {
  document.title = data.program + " on " + data.target;
  byId("name").textContent = data.program;
  byId("subtitle").textContent = data.core_count === 1 ? "one NeuronCore of " + data.target
    : data.core_count + (data.of_ranks ? " NeuronCores of ranks on " : " NeuronCores of ") + data.target + "; numbers are of the one that ends last, times by line and operator of all";
  byId("blocks").textContent = data.blocks
    ? data.blocks.toLocaleString("en") + " of " + data.executed.toLocaleString("en") + " instructions are drawn in blocks: repeated"
      + " iterations, and instructions too short for a bar of their own. A block is filled as far as its engine was busy;"
      + " every instruction is in exactly one bar." : "";
  fillCards();
  fillEngines();
  fillRoofline();
  fillTable("opcodes", [["engine"], ["opcode"], ["count", 1], ["busy", 1], ["each", 1]],
    data.opcodes.filter((o) => o.count).map((o) => [engineCell(o.engine || ""), o.more || o.opcode, o.count.toLocaleString("en"),
      time(o.busy_ns), time(o.busy_ns / o.count)]), "no instructions");
  fillSources("lines", "source line", data.source_lines);
  fillSources("operators", "operator", data.operators);
  fillPath();
  fillGroups();
  fillTable("stalls", [["engine"], ["instruction"], ["waited for"], ["time", 1]],
    data.stalls.map((s) => [engineCell(s.engine || ""), s.more || s.opcode, s.semaphore || "", time(s.ns)]), "no waits that cost time");
  fillList("notes", data.notes, "nothing spilled, nothing to report");
  fillList("unmodelled", data.not_modelled, "nothing");
  byId("foldlabel").hidden = !data.skips.length;
  byId("search").addEventListener("input", (e) => { lastMatch = -Infinity; search(e.target.value); });
  byId("search").addEventListener("keydown", (e) => { if (e.key === "Enter") { e.preventDefault(); showNext(); } });
  byId("fold").addEventListener("change", (e) => { foldAxis(e.target.checked); draw(); });
  byId("in").addEventListener("click", () => zoom(0.5, center()));
  byId("out").addEventListener("click", () => zoom(2, center()));
  byId("all").addEventListener("click", () => { fitAll(); draw(); });
  byId("timeline").addEventListener("keydown", (e) => {
    const span = view[1] - view[0];
    const actions = { ArrowLeft: () => pan(-span / 8), ArrowRight: () => pan(span / 8),
      "+": () => zoom(0.6, center()), "-": () => zoom(1.6, center()), "0": () => { fitAll(); draw(); } };
    if (actions[e.key]) { e.preventDefault(); actions[e.key](); }
  });
  listen(byId("timeline"), hoverTimeline);
  listen(byId("bandwidth"), hoverBandwidth);
  for (const memory of ["SBUF", "PSUM"]) listen(byId(memory), hoverMemory(memory));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  foldAxis(true);
  draw();
}
start();
