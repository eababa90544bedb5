"use strict";
// Tips, keys, sorting and the panels of stitch ops. Without it the page still shows everything but the panels.

const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
document.documentElement.classList.add("scripted");

// ---- light and dark ------------------------------------------------------------------------------------------

const theme = document.getElementById("theme");
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// ---- tips ----------------------------------------------------------------------------------------------------

const tip = document.getElementById("tip");
function showTip(element) {
  tip.textContent = element.getAttribute("aria-label");
  tip.hidden = false;
  const box = element.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(box.left + box.width / 2 - own.width / 2, 8), innerWidth - own.width - 8);
  const above = box.top - own.height - 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 4 ? above : box.bottom + 8) + scrollY}px`;
}
function hideTip() {
  tip.hidden = true;
}
for (const element of $$("[data-tip]")) {
  element.addEventListener("mouseenter", () => showTip(element));
  element.addEventListener("mouseleave", hideTip);
  element.addEventListener("focus", () => showTip(element));
  element.addEventListener("blur", hideTip);
}

// ---- the table of kernels --------------------------------------------------------------------------------------

const table = document.getElementById("kernel-table");
function sortBy(button) {
  const head = button.closest("th");
  const descending = head.getAttribute("aria-sort") !== "descending";
  for (const other of $$("th", table)) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const column = Number(button.dataset.column);
  const numeric = button.dataset.kind === "number";
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row.cells[column].dataset.v, row]);
  rows.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what is not known comes last
    const order = numeric ? a - b : a.localeCompare(b);
    return descending ? -order : order;
  });
  body.append(...rows.map(([, row]) => row));
  filterRows();
}
const FEW = 40; // rows at first, where there are many more
const all = document.getElementById("all-kernels");
function filterRows() {
  const on = new Set($$(".filter[aria-pressed=true]").map((b) => b.dataset.filter));
  let shown = 0;
  let left = 0;
  for (const row of table.tBodies[0].rows) {
    const wanted = on.has(row.dataset.side) && on.has(row.dataset.class);
    const few = all.getAttribute("aria-expanded") === "true" || shown < FEW;
    row.hidden = !(wanted && few);
    if (wanted && few) shown += 1;
    else if (wanted) left += 1;
  }
  all.hidden = left === 0;
  all.textContent = `Show ${left} more`;
}
if (table) {
  filterRows();
  all.addEventListener("click", () => {
    all.setAttribute("aria-expanded", "true");
    filterRows();
  });
  for (const button of $$("th button", table)) button.addEventListener("click", () => sortBy(button));
  for (const button of $$(".filter[data-filter]")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      filterRows();
    });
  }
}

// On paper nothing can be unfolded: all kernels and all refusals are there.
const folds = $$("#refusals details");
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = folds.filter((fold) => !fold.open);
  for (const fold of unfolded) fold.open = true;
  if (table) {
    all.dataset.before = all.getAttribute("aria-expanded");
    all.setAttribute("aria-expanded", "true");
    filterRows();
  }
});
addEventListener("afterprint", () => {
  for (const fold of unfolded) fold.open = false;
  if (table) {
    all.setAttribute("aria-expanded", all.dataset.before);
    filterRows();
  }
});

// ---- stitch ops that open --------------------------------------------------------------------------------------

const steps = $$(".step");
const panels = $$(".panel");
const hint = document.querySelector("#panels .hint");
let cameFrom = null;
function closePanel() {
  for (const panel of panels) panel.hidden = true;
  for (const step of steps) if (step.hasAttribute("aria-expanded")) step.setAttribute("aria-expanded", "false");
  if (hint) hint.hidden = false;
  if (cameFrom) cameFrom.focus();
  cameFrom = null;
}
function openPanel(id, from) {
  const panel = document.getElementById(id);
  cameFrom = null;
  closePanel();
  panel.hidden = false;
  if (hint) hint.hidden = true;
  const step = steps.find((s) => s.getAttribute("aria-controls") === id);
  if (step) step.setAttribute("aria-expanded", "true");
  cameFrom = from;
  if (from.classList.contains("open")) panel.scrollIntoView({ block: "center" });
  panel.focus({ preventScroll: true });
}
for (const button of $$("[data-opens]")) {
  button.addEventListener("click", () => openPanel(button.dataset.opens, button));
}
for (const button of $$(".panel .close")) button.addEventListener("click", closePanel);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    hideTip();
    if (panels.some((panel) => !panel.hidden)) closePanel();
  }
});

// The slowest stitch op is open at first, without taking the focus.
if (panels.length) {
  const row = table && $$(".open", table)[0];
  const id = row ? row.dataset.opens : panels[0].id;
  document.getElementById(id).hidden = false;
  if (hint) hint.hidden = true;
  const step = steps.find((s) => s.getAttribute("aria-controls") === id);
  if (step) step.setAttribute("aria-expanded", "true");
}

function walk(step, key) {
  const number = steps.indexOf(step);
  if (key === "ArrowRight") return steps[number + 1];
  if (key === "ArrowLeft") return steps[number - 1];
  if (key === "Home") return steps[0];
  if (key === "End") return steps[steps.length - 1];
  const row = Number(step.dataset.row) + (key === "ArrowDown" ? 1 : -1);
  const near = steps.filter((s) => Number(s.dataset.row) === row);
  const x = step.getBoundingClientRect().left;
  const away = (s) => Math.abs(s.getBoundingClientRect().left - x);
  return near.sort((a, b) => away(a) - away(b))[0];
}
const KEYS = ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"];
for (const step of steps) {
  const open = () => step.hasAttribute("aria-controls") && openPanel(step.getAttribute("aria-controls"), step);
  step.addEventListener("click", open);
  step.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open();
    } else if (KEYS.includes(event.key)) {
      event.preventDefault();
      const next = walk(step, event.key);
      if (next) next.focus();
    }
  });
  step.addEventListener("focus", () => {
    for (const other of steps) other.tabIndex = other === step ? 0 : -1;
  });
  const light = (on) => () => {
    for (const edge of $$(`.edge[data-from="${step.dataset.step}"], .edge[data-to="${step.dataset.step}"]`)) {
      edge.classList.toggle("lit", on);
    }
  };
  for (const name of ["mouseenter", "focus"]) step.addEventListener(name, light(true));
  for (const name of ["mouseleave", "blur"]) step.addEventListener(name, light(false));
}

// ---- timelines ---------------------------------------------------------------------------------------------------

for (const lane of $$(".lane")) {
  const events = $$(".event", lane);
  let at = -1;
  const mark = (number) => {
    if (events[at]) events[at].classList.remove("lit");
    at = Math.min(Math.max(number, 0), events.length - 1);
    events[at].classList.add("lit");
    showTip(events[at]);
  };
  lane.addEventListener("keydown", (event) => {
    const move = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: events.length - 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    mark(move);
  });
  lane.addEventListener("blur", () => {
    if (events[at]) events[at].classList.remove("lit");
    at = -1;
    hideTip();
  });
}
