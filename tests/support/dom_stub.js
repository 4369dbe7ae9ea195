// Runs the script of a profile page against stand-ins for the document and prints what it did.
"use strict";
const { readFileSync } = require("fs");
const vm = require("vm");
const [, , path, query] = process.argv;
const page = readFileSync(path, "utf8");
const data = page.match(/<script type="application\/json" id="data">([\s\S]*?)<\/script>/)[1];
const script = page.match(/<script>([\s\S]*)<\/script>\s*<\/body>/)[1];
const ids = new Set([...page.matchAll(/ id="(\w+)"/g)].map((m) => m[1]));
const drawn = new Set(), texts = [];
class Element {
  constructor(tag, id) {
    this.tag = tag; this.id = id; this.children = []; this.style = {}; this.dataset = {};
    this.listeners = {}; this.clientWidth = 1000; this.clientHeight = 100; this.textContent = "";
  }
  append(...more) { this.children.push(...more); }
  prepend(...more) { this.children.unshift(...more); }
  replaceChildren(...more) { this.children = more; }
  setAttribute() {}
  setPointerCapture() {}
  addEventListener(kind, action) { this.listeners[kind] = action; }
  getContext() {
    const own = this;
    return new Proxy({}, {
      get: (_, name) => (...given) => {
        for (const value of given) {
          if (typeof value === "number" && !Number.isFinite(value)) throw new Error(`${own.id} ${String(name)} got ${value}`);
        }
        if (name === "fillRect") drawn.add(own.id);
        if (name === "fillText") texts.push(given[0]);
      },
      set: () => true,
    });
  }
}
const found = new Map();
const byId = (id) => {
  if (!ids.has(id)) throw new Error(`no element ${id}`);
  if (!found.has(id)) found.set(id, new Element("div", id));
  return found.get(id);
};
byId("data").textContent = data;
const made = [];
const create = (tag) => { const one = new Element(tag, tag); made.push(one); return one; };
const document = {
  getElementById: byId, createElement: create, createElementNS: (_, tag) => create(tag),
  documentElement: new Element("html", "html"), title: "",
  querySelectorAll: () => made.filter((one) => one.dataset.text !== undefined),
};
const window = { devicePixelRatio: 1 };
const given = {
  document, window, innerWidth: 1200, innerHeight: 800, addEventListener() {}, console,
  getComputedStyle: () => ({ getPropertyValue: (name) => (name.startsWith("--core") ? "" : "#123456") }),
  matchMedia: () => ({ addEventListener() {} }),
};
vm.runInNewContext(script, given);
const timeline = byId("timeline");
for (let x = 0; x < 1000; x += 7) {
  for (let y = 0; y < 260; y += 5) timeline.listeners.pointermove({ offsetX: x, offsetY: y, clientX: x, clientY: y });
  byId("bandwidth").listeners.pointermove({ offsetX: x, offsetY: 9, clientX: x, clientY: 9 });
  byId("SBUF").listeners.pointermove({ offsetX: x, offsetY: 9, clientX: x, clientY: 9 });
}
timeline.listeners.wheel({ preventDefault() {}, deltaY: -400, offsetX: 500 });
timeline.listeners.dblclick();
for (const key of ["ArrowLeft", "ArrowRight", "+", "-", "0"]) timeline.listeners.keydown({ key, preventDefault() {} });
for (const id of ["in", "out", "all"]) byId(id).listeners.click();
byId("fold").listeners.change({ target: { checked: false } });
byId("search").value = query;
byId("search").listeners.input({ target: { value: query } });
byId("search").listeners.keydown({ key: "Enter", preventDefault() {} });
const written = made.map((one) => one.textContent).join("\n") + texts.join("\n");
console.log(JSON.stringify({ title: document.title, drawn: [...drawn], matches: byId("matches").textContent, texts: written }));
