// The board: a table of runs, curves of the chosen ones, and a page for each run. Text from runs is
// only ever set as textContent. Without a server (data.js has all documents) it shows them once.
"use strict";
(() => { // the names of Vega are global

// --- Words ---

const ZH = {
  "runs": "个运行", "live": "实时", "no connection": "连接中断", "saved page": "静态页面", ", ": "，", "search runs": "搜索运行",
  "all kinds": "所有类型", "group by": "分组", "nothing": "不分组", "seeds": "随机种子", "grids": "网格与多种子", "folder": "文件夹",
  "kind": "类型", "family": "模型", "objective": "目标", "state": "状态", "run": "运行", "progress": "进度",
  "tokens/s": "token/秒", "ETA": "剩余时间", "loss": "损失", "last validation": "最近验证", "best validation": "最佳验证",
  "result": "结果", "special settings": "与其他运行不同的配置", "changed": "更新", "running": "运行中", "stopped": "已停止",
  "killed": "被终止", "failed": "失败", "finished": "完成", "incomplete": "不完整", "damaged": "损坏", "foreign": "非 plmctl",
  "pretrain": "预训练", "finetune": "微调", "eval": "评测", "tokenizer": "分词器", "Curves": "曲线",
  "Horizontal axis": "横轴", "step": "步", "tokens": "token", "hours": "小时", "training hours": "训练小时",
  "smoothing": "平滑", "log x": "对数横轴", "log y": "对数纵轴", "clear": "清除选择", "choose runs in the table": "在上表中勾选运行，即可比较它们的曲线。",
  "Different settings": "不同的配置", "setting": "配置项", "all settings are the same": "所选运行的配置相同。",
  "training": "训练", "validation": "验证", "Loss": "损失", "Loss, ": "损失：", "Accuracy, ": "准确率：", "Learning rate": "学习率",
  "Gradient norm": "梯度范数", "Throughput": "吞吐量", "Waiting for data": "等待数据", "Memory": "内存", "Padding": "填充",
  "nats per target": "nats/token", "share of targets": "预测正确的占比", "tokens per second": "token/秒", "share of time": "时间占比",
  "GB": "GB", "share of positions": "位置占比", "norm before clipping": "裁剪前范数", "samples per second": "样本/秒", "Samples": "样本",
  "zoom in": "放大", "zoom out": "缩小", "whole curve": "完整曲线",
  "Drag moves a plot, Ctrl and the wheel zoom it, a double click shows all.": "拖动平移，Ctrl+滚轮缩放，双击还原。",
  "all runs": "所有运行", "no runs here": "这里没有运行：没有找到含 config.yaml 的文件夹。", "no run matches": "没有符合条件的运行。",
  "Nothing to do. Ctrl-C saves a checkpoint and stops it.": "无需操作。按 Ctrl-C 会保存检查点并停止。",
  "The same command resumes it.": "用同一条命令继续。",
  "Remove the cause; then the same command resumes it.": "排除原因后，用同一条命令继续。",
  "The same command writes what is missing.": "同一条命令会补上缺少的文件。",
  "See its curves and results as one page.": "把曲线和结果写成一页报告：",
  "Try the model in a browser.": "在浏览器里试用模型：",
  "It ended without a word: it was killed, or the machine went down.": "运行意外结束：进程被终止，或机器断电。",
  "training time": "训练时间", "Plan and progress": "计划与进度", "planned": "计划", "so far": "目前", "steps": "步数", "epochs": "遍数", "words": "词数",
  "Results": "结果", "metric": "指标", "value": "值", "By class": "按类别", "label": "类别", "precision": "精确率", "recall": "召回率",
  "F1": "F1", "support": "样本数", "What counting gives, without a network": "不用神经网络、只靠计数的结果", "method": "方法", "seconds": "秒", "score of a row": "每行的得分", "network better by": "网络高出", "from": "下限", "to": "上限", "Confusion: truth in rows, prediction in columns": "混淆矩阵：行是真实类别，列是预测",
  "Settings": "各组配置", "median": "中位数", "std": "标准差", "min": "最小", "max": "最大",
  "What the model predicts": "模型的预测", "Original: ": "原文：", "Right: ": "正确答案：", "Samples over the training": "训练过程中的样本", "its guesses": "模型的猜测", "its text": "模型写的文字", "Events": "事件", "Environment": "环境", "Config": "配置",
  "Pages": "页面", "Held-out text in tokens": "切分成 token 的留出文本", "Checkpoints": "检查点", "as of": "截至", "lines cannot be read": "行无法读取", "at step": "于第",
  "token frequencies alone": "只知道 token 频率", ", ": "，",
  "no curves": "所选运行没有曲线：步数太少，或还没有记录。请勾选步数更多的运行。",
  "The losses of runs with another objective or tokenizer cannot be compared.": "目标或分词器不同的运行，损失不能相互比较。",
  "searching old validations": "正在读取较早的验证", "too many folders": "文件夹过多，只列出了一部分",
  "memory": "内存", "waiting": "等待数据", "learning rate": "学习率", "No charts: install vl-convert-python; or, if ulimit -v is below 64 GiB, open a board once in a shell without that limit.": "无法绘制曲线：请安装 vl-convert-python；若 ulimit -v 小于 64 GiB，请先在没有该限制的 shell 中打开一次看板。",
  "choose": "勾选", "just now": "刚刚", "s ago": " 秒前", "min ago": " 分钟前", "h ago": " 小时前", "d ago": " 天前", "same settings": "相同配置", "reading": "读取中",
};
const { h, language, languageButton } = window.plmctl;
const t = (text) => (language() === "zh" ? ZH[text] ?? text : text);

// --- Numbers ---

function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toFixed(2)}B`;
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  if (size >= 1e3) return Math.round(value).toLocaleString("en-US");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(2);
  return size >= 0.01 ? value.toFixed(3) : value.toExponential(2);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const all = Math.max(0, Math.round(seconds)), two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(all / 86400), hours = Math.floor((all % 86400) / 3600);
  const minutes = Math.floor((all % 3600) / 60);
  if (days) return `${days}d ${two(hours)}h`;
  return hours ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

function ago(time) {
  if (!time) return "";
  const seconds = now() - time;
  if (seconds < 10) return t("just now");
  if (seconds < 90) return Math.round(seconds) + t("s ago");
  if (seconds < 5400) return Math.round(seconds / 60) + t("min ago");
  return seconds < 129600 ? Math.round(seconds / 3600) + t("h ago") : Math.round(seconds / 86400) + t("d ago");
}

// --- What is shown ---

const FREQUENCIES = "token frequencies alone";
const STATIC = window.BOARD ?? null;
const KEEP = 12; // runs in one plot
const state = {
  rows: new Map(), ids: [], version: 0, root: "", reading: 0, tooMany: false, connected: true, time: 0,
  chosen: null, search: "", kind: "", states: new Set(), group: "", closed: new Set(), sort: ["", 1],
  x: "step", smooth: 0, logx: false, logy: false, page: "",
};
const curves = new Map(), settings = new Map(), details = new Map();
let offset = 0; // of the server's clock
const now = () => (STATIC ? state.time : Date.now() / 1000 + offset);

async function get(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) throw new Error(String(response.status));
  return response.json();
}
const curvesOf = async (id) => (STATIC ? STATIC.curves[id] : get(`api/curves?run=${encodeURIComponent(id)}`));
const settingsOf = async (id) => (STATIC ? STATIC.settings[id] : get(`api/settings?run=${encodeURIComponent(id)}`));
const detailsOf = async (id) => (STATIC ? STATIC.details[id] : get(`api/run?run=${encodeURIComponent(id)}`));

function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  state.page = hash.get("run") ?? "";
  if (hash.has("show")) state.chosen = hash.get("show").split(",").filter(Boolean);
  if (["step", "tokens", "hours"].includes(hash.get("x"))) state.x = hash.get("x");
}
function writeHash() {
  const hash = new URLSearchParams();
  if (state.page) hash.set("run", state.page);
  if (state.chosen?.length) hash.set("show", state.chosen.join(","));
  if (state.x !== "step") hash.set("x", state.x);
  history.replaceState(null, "", `#${hash}`);
}

// --- The table ---

const COLUMNS = [
  ["name", "run", (r) => r.name], ["state", "state", (r) => r.state], ["share", "progress", (r) => r.share],
  ["eta", "ETA", (r) => r.eta, "wide number"], ["valid", "last validation", (r) => r.valid, "wide number"],
  ["best", "best validation", (r) => r.best, "number"], ["scores", "result", (r) => r.scores[0]?.[1] ?? r.message, "wide"],
  ["speed", "tokens/s", (r) => r.speed, "wide number"], ["kind", "kind", (r) => r.kind, "wide"], ["family", "family", (r) => r.family, "wide"],
  ["objective", "objective", (r) => r.objective, "wide"],
  ["settings", "special settings", (r) => r.settings.map((s) => s.join("=")).join(" "), "wide"], ["updated", "changed", (r) => r.updated, "wide number"],
];
const STATES = ["running", "stopped", "killed", "failed", "incomplete", "damaged", "foreign", "finished"];

function shownRows() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = state.ids.map((id) => state.rows.get(id)).filter((row) => {
    if (!row || (state.kind && row.kind !== state.kind)) return false;
    if (state.states.size && !state.states.has(row.state)) return false;
    if (!words.length) return true;
    const text = [row.name, row.state, row.kind, row.family, row.objective, ...row.settings.map((s) => s.join("="))].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const [key, direction] = state.sort;
  const of = COLUMNS.find((column) => column[0] === key)?.[2];
  if (!of) { // those that work, by name, so that they keep their places; then the newest
    const place = (row) => (row.state === "running" ? Infinity : row.updated ?? 0);
    rows.sort((one, two) => (place(one) === place(two) ? 0 : place(two) - place(one)));
  } else {
    rows.sort((one, two) => {
      const a = of(one), b = of(two), none = (v) => v === null || v === undefined || v === "";
      if (none(a) || none(b)) return none(a) - none(b);
      return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
    });
  }
  return rows;
}

function groupsOf(rows) {
  const folder = (row) => row.name.split("/").slice(0, -1).join("/");
  const names = new Set([...state.rows.values()].map((row) => row.name));
  const grid = (row) => { // the nearest folder above that is a run itself, of --seeds or --grid
    if (row.members) return row.name;
    for (let name = folder(row); name; name = folder({ name })) if (names.has(name)) return name;
    return "";
  };
  const of = { seeds: (r) => r.group, grids: grid, folder, kind: (r) => r.kind, family: (r) => r.family, objective: (r) => r.objective, state: (r) => r.state }[state.group];
  if (!of) return [[null, rows]];
  const groups = new Map();
  for (const row of rows) {
    const key = of(row) || "–";
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups];
}

function common(names) { // the first and the last folders that the runs of a group share
  const parts = names.map((name) => name.split("/")), least = Math.min(...parts.map((p) => p.length));
  const same = (of) => { let n = 0; while (n < least && new Set(parts.map((p) => of(p, n))).size === 1) n++; return n; };
  const first = same((p, n) => p[n]), last = Math.min(same((p, n) => p[p.length - 1 - n]), least - first), [one] = parts;
  return [...one.slice(0, first), "*", ...one.slice(one.length - last)].join("/");
}

function middle(values) {
  const known = values.filter((v) => typeof v === "number").sort((a, b) => a - b);
  if (!known.length) return null;
  const half = known.length >> 1;
  return known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
}

const badge = (name) => h("span", { class: `state ${name}` }, t(name));
const colorOf = (id) => { const at = (state.chosen ?? []).indexOf(id); return at < 0 ? null : at % 7; };

const stepsOf = (row) => (row.step === null ? (row.members ? `${row.members.join(" / ")} ${t("runs")}` : "") : row.total ? `${number(row.step)} / ${number(row.total)}` : number(row.step));
const atStep = (step) => (step === null ? null : `${t("step")} ${number(step)}`);
function progressBar(row) {
  const bar = h("i");
  bar.style.width = `${100 * row.share}%`;
  return h("span", { class: "progress", title: stepsOf(row) }, bar);
}
const short = (value, most = 24) => (value.length > most ? `${value.slice(0, most)}…` : value);

const breakable = (name) => name.split(/(?<=[/,=_-])/).flatMap((part, at) => (at ? [h("wbr"), part] : [part])); // of whole words

// The cells of a run, and of a group of runs, by column: attributes, and what is in them.
const CELLS = {
  name: (r) => [{ class: "name", title: r.name }, h("a", { href: `#run=${r.id}`, "aria-label": r.name }, breakable(r.name))],
  state: (r) => [{ title: r.message || null }, badge(r.state)],
  kind: (r) => [{}, t(r.kind)], family: (r) => [{}, r.family], objective: (r) => [{}, r.objective],
  share: (r) => [{}, r.share === null ? null : progressBar(r), h("span", { class: "small wide" }, stepsOf(r))],
  speed: (r) => [{}, number(r.speed)], eta: (r) => [{}, duration(r.eta)],
  valid: (r) => [{ title: atStep(r.valid_step) }, number(r.valid)], best: (r) => [{ title: atStep(r.best_step) }, number(r.best)],
  scores: (r) => [{ title: r.scores.map(([name, value]) => `${name} ${number(value)}`).join("\n") || null }, r.scores[0] ? [number(r.scores[0][1]), " ", h("span", { class: "soft small" }, r.scores[0][0])] : h("span", { class: "soft small", title: r.message }, short(r.message.split("\n")[0], 48))],
  settings: (r) => [{ class: "special", title: r.settings.map((one) => one.join(": ")).join("\n") || null }, r.settings.slice(0, 5).map(([key, value]) => h("span", {}, key.split(".").pop(), " ", h("b", {}, short(value))))],
  updated: (r) => [{ title: r.updated ? new Date(r.updated * 1000).toLocaleString() : null }, ago(r.updated)],
};

function rowOf(row, columns) {
  const color = colorOf(row.id), drawn = row.step !== null || row.valid !== null;
  return h("tr", { class: color === null ? null : "chosen", "data-id": row.id },
    h("td", {}, drawn ? h("input", { type: "checkbox", checked: color !== null, "aria-label": `${t("choose")} ${row.name}`, onchange: () => choose(row.id) }) : null,
      color === null ? null : [" ", h("span", { class: `swatch c${color}` })]),
    columns.map(([key, , , style]) => {
      const [attributes, ...content] = CELLS[key](row);
      return h("td", { ...attributes, class: [style, attributes.class].filter(Boolean).join(" ") || null }, content);
    }));
}

function groupRow(key, rows, columns) {
  const closed = state.closed.has(key), best = rows.map((r) => r.best), known = best.filter((v) => v !== null);
  const spread = known.length > 1 ? ` (${number(Math.min(...known))} – ${number(Math.max(...known))})` : "";
  const score = rows.find((r) => r.scores[0])?.scores[0]?.[0];
  const scores = middle(rows.map((r) => (r.scores[0]?.[0] === score ? r.scores[0]?.[1] : null)));
  const toggle = () => { closed ? state.closed.delete(key) : state.closed.add(key); drawTable(); };
  const cells = {
    name: () => h("button", { onclick: toggle }, `${state.group === "seeds" ? common(rows.map((r) => r.name)) : t(key)} (${rows.length})`),
    best: () => (known.length ? [h("span", { class: "soft small", title: `${t("median")}${spread}` }, `${t("median")} `), number(middle(best))] : ""),
    scores: () => (scores === null ? "" : [number(scores), " ", h("span", { class: "soft small" }, `${t("median")}, ${score}`)]),
  };
  return h("tr", { class: "group" }, h("td", {}, h("button", { onclick: toggle, "aria-expanded": String(!closed), "aria-label": String(key) }, closed ? "▸" : "▾")),
    columns.map(([column, , , style]) => h("td", { class: [style, column === "name" ? "name" : ""].filter(Boolean).join(" ") || null }, cells[column]?.() ?? "")));
}

function drawTable() {
  const place = document.getElementById("table");
  if (!place) return;
  const rows = shownRows(), [sorted, direction] = state.sort;
  const columns = COLUMNS.filter(([key, , of]) => key === "name" || rows.some((row) => { const value = of(row); return value !== null && value !== undefined && value !== ""; }));
  const head = columns.map(([key, title, , style]) => h("th", { class: style ?? null, "aria-sort": key === sorted ? (direction > 0 ? "ascending" : "descending") : null, "data-column": key },
    h("button", { onclick: () => { state.sort = key === sorted && direction < 0 ? ["", 1] : [key, key === sorted ? -1 : 1]; drawTable(); } }, t(title), key === sorted ? (direction > 0 ? " ▲" : " ▼") : "")));
  const body = [];
  for (const [key, members] of groupsOf(rows)) {
    const single = key === null || (state.group === "seeds" && members.length === 1) || (state.group === "grids" && key === "–");
    if (!single) body.push(groupRow(key, members, columns));
    if (single || !state.closed.has(key)) body.push(...members.map((row) => rowOf(row, columns)));
  }
  const empty = rows.length ? null : h("p", { class: "empty" }, t(state.rows.size ? "no run matches" : "no runs here"));
  const scrolled = [place.scrollTop, place.scrollLeft];
  place.replaceChildren(empty ?? h("table", {}, h("thead", {}, h("tr", {}, h("th"), head)), h("tbody", {}, body)));
  [place.scrollTop, place.scrollLeft] = scrolled;
  drawCounts();
}

function drawCounts() {
  const place = document.getElementById("counts");
  if (!place) return;
  const counts = {};
  for (const row of state.rows.values()) counts[row.state] = (counts[row.state] ?? 0) + 1;
  place.replaceChildren(...STATES.filter((name) => counts[name]).map((name) => h("button", {
    "aria-pressed": String(state.states.has(name)),
    onclick: () => { state.states.has(name) ? state.states.delete(name) : state.states.add(name); drawTable(); },
  }, `${t(name)} ${counts[name]}`)));
}

function choose(id) {
  state.chosen = state.chosen.includes(id) ? state.chosen.filter((one) => one !== id) : [...state.chosen, id].slice(-KEEP);
  writeHash();
  drawTable();
  drawCurves();
  drawDifferences();
}

// --- Curves: Vega draws them from the description that the server has ---

const NAMES = {
  "loss": ["Loss", "nats per target"], "lr": ["Learning rate", ""], "grad_norm": ["Gradient norm", "norm before clipping"],
  "tokens_per_second": ["Throughput", "tokens per second"], "samples_per_second": ["Samples", "samples per second"], "data_wait": ["Waiting for data", "share of time"],
  "memory_gb": ["Memory", "GB"], "padding": ["Padding", "share of positions"],
};
const LAST = ["lr", "grad_norm", "tokens_per_second", "data_wait", "memory_gb", "padding"], NEVER = ["samples_per_second"];
const FROM_ZERO = ["tokens_per_second", "data_wait", "memory_gb", "padding", "lr"];

function titleOf(key) {
  if (NAMES[key]) return NAMES[key].map(t);
  if (key.startsWith("loss/")) return [t("Loss, ") + key.slice(5), t("nats per target")];
  if (key.startsWith("accuracy/")) return [t("Accuracy, ") + key.slice(9), t("share of targets")];
  return [key, ""];
}

function chartsOf(documents) {
  const keys = new Map();
  for (const document of documents) {
    for (const part of ["train", "valid"]) {
      for (const key of Object.keys(document[part].keys)) {
        const name = part === "valid" ? key.replace(/^valid\//, "") : key;
        if (!NEVER.includes(name)) keys.set(name, Math.max(keys.get(name) ?? 0, document[part].step.length));
      }
    }
  }
  const terms = [...keys.keys()].filter((key) => key.startsWith("loss/"));
  if (keys.has("loss") && terms.length === 1) keys.delete(terms[0]);
  const order = (key) => (key === "loss" ? -2 : key.startsWith("loss/") ? -1 : LAST.includes(key) ? 10 + LAST.indexOf(key) : 0);
  return [...keys].filter(([, points]) => points > 1).map(([key]) => key).sort((a, b) => order(a) - order(b));
}

function smoothed(values, radius) { // the mean around each value, of as many on both sides
  if (!radius) return values;
  return values.map((value, at) => {
    if (value === null) return null;
    const r = Math.min(radius, at, values.length - 1 - at);
    let sum = 0, count = 0;
    for (let i = at - r; i <= at + r; i++) if (values[i] !== null) { sum += values[i]; count++; }
    return count ? sum / count : null;
  });
}

function pointsOf(key, documents) {
  const points = [], positive = (v, log) => v !== null && v !== undefined && (!log || v > 0), logy = state.logy;
  for (const document of documents) {
    for (const part of ["train", "valid"]) {
      const table = document[part], curve = table.keys[part === "valid" ? `valid/${key}` : key];
      if (!curve) continue;
      const radius = part === "train" ? Math.round((state.smooth / 100) * 0.12 * table.step.length) : 0;
      const y = smoothed(curve.mean, radius), at = table[state.x];
      for (let i = 0; i < y.length; i++) {
        if (!positive(at[i], state.logx) || !positive(y[i], logy)) continue;
        const low = radius ? curve.mean[i] : curve.low?.[i] ?? y[i], high = radius ? curve.mean[i] : curve.high?.[i] ?? y[i];
        points.push({ run: document.id, part, x: at[i], y: y[i], low: positive(low, logy) ? low : y[i], high: positive(high, logy) ? high : y[i] });
      }
    }
    const ends = [...document.train[state.x], ...document.valid[state.x]].filter((x) => positive(x, state.logx));
    for (const [name, levels] of Object.entries(document.levels ?? {})) {
      const level = levels[key], part = name === FREQUENCIES ? "level" : name;
      if (positive(level, logy) && ends.length) for (const x of [Math.min(...ends), Math.max(...ends)]) points.push({ run: document.id, part, x, y: level, low: level, high: level });
    }
  }
  return points;
}

function flatRange(points) { // an axis around a curve that has one value; null: it has several
  const values = new Set(points.map((point) => point.y)), [value] = values;
  if (values.size !== 1) return null;
  const half = Math.abs(value) * 0.2 || 1;
  return [value - half, value + half];
}

const plots = new Map(); // key of a chart: its view, its element, and the options it was drawn with
let template = null, drawing = Promise.resolve(), vegaLoaded = null;

function loadVega() {
  vegaLoaded ??= new Promise((resolve) => {
    const script = h("script", { src: "vega.js" });
    script.addEventListener("load", () => resolve(Boolean(window.vegaEmbed)));
    script.addEventListener("error", () => resolve(false));
    document.head.append(script);
  });
  return vegaLoaded;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function specOf(key, ids, points) {
  const spec = structuredClone(template), logy = state.logy;
  const x = spec.encoding.x, y = spec.encoding.y;
  x.title = t(state.x === "hours" ? "training hours" : state.x);
  y.title = null; // the heading has the unit
  x.scale = { ...x.scale, ...(state.logx ? { type: "log" } : { type: "linear", zero: false }) };
  y.scale = { ...y.scale, ...(logy ? { type: "log", nice: false } : { type: "linear", zero: FROM_ZERO.includes(key) }) };
  const flat = flatRange(points);
  if (flat) y.scale = { ...y.scale, zero: false, domain: flat };
  spec.encoding.color.scale = { domain: ids, range: ids.map((id) => css(`--c${colorOf(id) ?? 0}`)) };
  const soft = css("--soft"), line = css("--line");
  spec.config = { ...spec.config, background: "transparent", font: css("--font").replace(/"/g, "'"),
    axis: { ...spec.config.axis, labelColor: soft, titleColor: soft, gridColor: line, domainColor: soft, tickColor: line } };
  return spec;
}

function tip(handler, event, item, value) {
  const place = document.getElementById("tip");
  const point = item?.datum?.datum ?? item?.datum; // of the cell around the point, or the point
  if (!value || !point) { place.hidden = true; return; }
  const row = state.rows.get(point.run);
  const at = state.x === "hours" ? `${number(point.x)} ${t("hours")}` : `${t(state.x)} ${number(point.x)}`;
  place.replaceChildren(h("div", {}, row?.name ?? ""), h("div", {}, `${at}: ${number(point.y)}`), h("div", {}, t({ train: "training", valid: "validation", level: FREQUENCIES }[point.part] ?? point.part)));
  place.hidden = false;
  const box = place.getBoundingClientRect();
  place.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  place.style.top = `${event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16}px`;
}

function zoom(key, factor) {
  const plot = plots.get(key);
  if (!plot?.view) return;
  const view = plot.view;
  for (const axis of ["x", "y"]) {
    const [low, high] = view.scale(axis).domain().map(Number), log = axis === "x" ? state.logx : state.logy;
    if (factor === null) { view.signal(`zoom_${axis}`, null); continue; }
    if (axis === "y") { view.signal("zoom_y", [low, high]); continue; } // both count, or none
    const [a, b] = log ? [Math.log(low), Math.log(high)] : [low, high], half = ((b - a) / 2) * factor, mid = (a + b) / 2;
    view.signal("zoom_x", log ? [Math.exp(mid - half), Math.exp(mid + half)] : [mid - half, mid + half]);
  }
  view.runAsync();
}

let waiting = false; // one drawing waits at most: it has all that changed until it begins
function drawCurves() {
  if (waiting) return;
  waiting = true;
  const draw = () => { waiting = false; return drawCurvesNow(); };
  drawing = drawing.then(draw, draw);
}

// A chart is drawn when it is near the window: of a dozen, three or four are seen at once.
const NEAR = 400;
const observer = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) drawCurves(); }, { rootMargin: `${NEAR}px` });
function isNear(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > -NEAR && box.top < innerHeight + NEAR;
}

async function drawCurvesNow() {
  const ids = state.page ? [state.page] : (state.chosen ?? []).filter((id) => state.rows.has(id));
  const place = document.getElementById("charts");
  if (!place) return;
  for (const id of ids) {
    const version = state.rows.get(id)?.drawn ?? 0;
    if (curves.get(id)?.version !== version || !curves.has(id)) {
      try { const document = await curvesOf(id); if (document) curves.set(id, { version, document }); } catch { /* the next refresh tries again */ }
    }
  }
  drawLegend(ids);
  if (!(await loadVega())) { place.replaceChildren(h("p", { class: "note" }, t("No charts: install vl-convert-python; or, if ulimit -v is below 64 GiB, open a board once in a shell without that limit."))); return; }
  template ??= STATIC ? STATIC.chart : await get("api/chart");
  if (!place.isConnected) return; // another page is shown now
  const documents = ids.map((id) => curves.get(id)?.document).filter(Boolean);
  const keys = chartsOf(documents);
  const groups = new Set(ids.map((id) => state.rows.get(id)).filter((row) => row.kind === "pretrain").map((row) => row.comparable));
  drawNote(ids.length && !keys.length ? t("no curves") : groups.size > 1 ? t("The losses of runs with another objective or tokenizer cannot be compared.") : "");
  for (const [key, plot] of [...plots]) {
    if (!keys.includes(key) || !place.contains(plot.element)) { plot.view?.finalize(); observer.unobserve(plot.element); plot.element.remove(); plots.delete(key); }
  }
  const style = JSON.stringify([ids, ids.map(colorOf), state.x, state.logx, state.logy, language(), matchMedia("(prefers-color-scheme: dark)").matches]);
  for (const [at, key] of keys.entries()) { // all have their places before one is measured
    if (!plots.has(key)) {
      const [title, unit] = titleOf(key), target = h("div", { class: "plot" });
      const element = h("figure", { class: "chart", "data-key": key }, h("div", { class: "head" }, h("h3", {}, title, " ", h("span", { class: "unit" }, unit)),
        h("button", { title: t("zoom in"), "aria-label": t("zoom in"), onclick: () => zoom(key, 0.5) }, "+"),
        h("button", { title: t("zoom out"), "aria-label": t("zoom out"), onclick: () => zoom(key, 2) }, "−"),
        h("button", { title: t("whole curve"), "aria-label": t("whole curve"), onclick: () => zoom(key, null) }, "⟲")), target);
      plots.set(key, { element, target, style: "" });
      observer.observe(element);
    }
    const { element } = plots.get(key);
    if (place.children[at] !== element) place.insertBefore(element, place.children[at] ?? null);
  }
  dispatchEvent(new Event("resize")); // those that are there may have another width
  for (const key of keys) {
    const plot = plots.get(key), { target } = plot;
    if (!place.isConnected || !place.clientWidth) return;
    if (!isNear(plot.element)) continue;
    const points = pointsOf(key, documents);
    const own = `${style} ${flatRange(points)}`;
    if (plot.style === own && plot.view) {
      plot.view.data("points", points); // the visible range stays
      await plot.view.runAsync();
      continue;
    }
    plot.view?.finalize();
    plot.view = null;
    target.replaceChildren();
    const spec = specOf(key, ids, points);
    spec.data = { name: "points", values: points };
    spec.height = target.clientHeight - 4;
    const embedded = await window.vegaEmbed(target, spec, { actions: false, ast: true, renderer: "canvas", defaultStyle: false, logLevel: 1, tooltip: tip });
    if (!target.isConnected) { embedded.view.finalize(); return; }
    plot.view = target.vega = embedded.view;
    plot.style = own;
  }
}

function drawNote(text) {
  const place = document.getElementById("curves-note");
  if (place) { place.textContent = text; place.hidden = !text; }
}

function drawLegend(ids) {
  const place = document.getElementById("legend");
  if (!place) return;
  const items = state.page ? [] : ids.map((id) => h("span", { class: "item" }, h("span", { class: `swatch c${colorOf(id)}` }), state.rows.get(id).name,
    h("button", { title: t("clear"), "aria-label": `${t("clear")} ${state.rows.get(id).name}`, onclick: () => choose(id) }, "×")));
  place.replaceChildren(...items, h("span", { class: "item" }, h("i", { class: "key-line" }), t("training")), h("span", { class: "item" }, h("i", { class: "key-line dashed" }), t("validation")),
    ...[...new Set(ids.flatMap((id) => Object.keys(curves.get(id)?.document.levels ?? {})))].map((name) => h("span", { class: "item" }, h("i", { class: name === FREQUENCIES ? "key-line dotted" : "key-line dotted heavy" }), t(name))));
  place.hidden = !ids.length;
}

async function drawDifferences() {
  const place = document.getElementById("differences");
  if (!place) return;
  const ids = (state.chosen ?? []).filter((id) => state.rows.has(id));
  if (ids.length < 2) { place.replaceChildren(); return; }
  for (const id of ids) {
    if (!settings.has(id)) {
      try { settings.set(id, (await settingsOf(id))?.settings ?? {}); } catch { return; }
    }
  }
  const known = ids.map((id) => settings.get(id)), keys = [...new Set(known.flatMap((one) => Object.keys(one)))];
  const rows = keys.filter((key) => key !== "run" && new Set(known.map((one) => one[key] ?? "null")).size > 1);
  const head = h("tr", {}, h("th", {}, t("setting")), ids.map((id) => h("th", {}, h("span", { class: `swatch c${colorOf(id)}` }), " ", state.rows.get(id).name)));
  place.replaceChildren(h("h2", {}, t("Different settings")), rows.length
    ? h("div", { class: "panel scroll differences" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows.map((key) => h("tr", {}, h("th", { scope: "row" }, key), known.map((one) => h("td", {}, one[key] ?? "")))))))
    : h("p", { class: "soft" }, t("all settings are the same")));
}

// --- Tools, and the two pages ---

function curveTools() {
  const select = (options, value, set) => h("select", { onchange: (event) => { set(event.target.value); writeHash(); drawCurves(); } }, options.map(([key, title]) => h("option", { value: key, selected: key === value }, t(title))));
  return h("div", { class: "bar-of-tools" },
    h("label", {}, t("Horizontal axis"), select([["step", "step"], ["tokens", "tokens"], ["hours", "hours"]], state.x, (v) => { state.x = v; })),
    h("label", {}, t("smoothing"), h("input", { id: "smooth", type: "range", min: 0, max: 100, value: state.smooth, oninput: (event) => { state.smooth = +event.target.value; drawCurves(); } })),
    h("label", {}, h("input", { id: "logx", type: "checkbox", checked: state.logx, onchange: (event) => { state.logx = event.target.checked; drawCurves(); } }), t("log x")),
    h("label", {}, h("input", { id: "logy", type: "checkbox", checked: state.logy, onchange: (event) => { state.logy = event.target.checked; drawCurves(); } }), t("log y")),
    state.page ? null : h("button", { onclick: () => { state.chosen = []; writeHash(); drawTable(); drawCurves(); drawDifferences(); } }, t("clear")));
}

function header() {
  return h("header", { class: "top" }, h("h1", {}, h("a", { href: "#", style: null, class: "home" }, "plmctl board")), h("span", { class: "path" }, state.root),
    h("span", { class: "live" }, h("span", { id: "live" }), languageButton(drawPage)));
}

function drawLive() {
  const place = document.getElementById("live");
  if (!place) return;
  const text = STATIC ? `${t("saved page")}${t(", ")}${t("as of")} ${new Date(STATIC.runs.time * 1000).toLocaleString()}` : t(state.connected ? "live" : "no connection");
  const notes = [state.reading ? t("searching old validations") : "", state.tooMany ? t("too many folders") : ""].filter(Boolean).map((note) => ` · ${note}`);
  place.replaceChildren(h("span", { class: state.connected ? "dot" : "dot off" }), `${text} · ${number(state.rows.size)} ${t("runs")}`, ...notes);
}

function drawPage() {
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  for (const plot of plots.values()) plot.view?.finalize();
  plots.clear();
  observer.disconnect();
  const main = document.getElementById("board");
  if (state.page) { main.replaceChildren(header(), h("div", { id: "run" })); drawLive(); drawRun(true); return; }
  document.title = "plmctl board";
  const kinds = [...new Set([...state.rows.values()].map((row) => row.kind))].filter(Boolean).sort();
  main.replaceChildren(header(),
    h("div", { class: "bar-of-tools" },
      h("input", { type: "search", id: "search", placeholder: t("search runs"), "aria-label": t("search runs"), value: state.search, oninput: (event) => { state.search = event.target.value; drawTable(); } }),
      h("select", { id: "kind", "aria-label": t("kind"), onchange: (event) => { state.kind = event.target.value; drawTable(); } }, h("option", { value: "" }, t("all kinds")), kinds.map((kind) => h("option", { value: kind, selected: kind === state.kind }, t(kind)))),
      h("label", {}, t("group by"), h("select", { id: "group", onchange: (event) => { state.group = event.target.value; drawTable(); } }, [["", "nothing"], ...["seeds", "grids", "folder", "kind", "family", "objective", "state"].map((g) => [g, g])].map(([g, title]) => h("option", { value: g, selected: g === state.group }, t(title))))),
      h("span", { class: "counts", id: "counts" })),
    h("div", { class: "runs", id: "table" }),
    h("h2", {}, t("Curves")), curveTools(), h("div", { class: "legend", id: "legend" }),
    h("p", { class: "soft", id: "curves-note", hidden: true }), h("div", { class: "charts", id: "charts" }), h("p", { class: "soft small" }, t(state.chosen?.length ? "Drag moves a plot, Ctrl and the wheel zoom it, a double click shows all." : "choose runs in the table")), h("div", { id: "differences" }));
  drawLive();
  drawTable();
  drawCurves();
  drawDifferences();
}

async function drawRun(whole) {
  const id = state.page, place = document.getElementById("run");
  if (!place) return;
  let document_;
  try { document_ = await detailsOf(id); } catch { document_ = null; }
  if (state.page !== id || !document.getElementById("run")) return;
  if (!document_) { place.replaceChildren(h("p", { class: "back" }, h("a", { href: "#" }, `← ${t("all runs")}`)), h("p", {}, t("no run matches"))); return; }
  const row = document_.row;
  document.title = `${row.name} · plmctl board`;
  if (!whole && document.getElementById("charts")) {
    document.getElementById("run-head").replaceWith(runHead(document_));
    const open = new Set([...document.querySelectorAll("#run-rest details[open]")].map((d) => d.dataset.name));
    document.getElementById("run-rest").replaceWith(runRest(document_, open));
  } else {
    const draws = row.step !== null || row.valid !== null;
    place.replaceChildren(runHead(document_), ...(draws ? [h("h2", {}, t("Curves")), curveTools(), h("div", { class: "legend", id: "legend" }), h("p", { class: "soft", id: "curves-note", hidden: true }), h("div", { class: "charts", id: "charts" })] : []), runRest(document_, new Set(["samples-0"])));
  }
  drawCurves();
}

const tile = (name, value) => (value === "" || value === null ? null : h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: String(value).length > 9 ? "long" : null }, value)));

function runHead(document_) {
  const row = document_.row, message = row.message || (row.state === "killed" ? t("It ended without a word: it was killed, or the machine went down.") : "");
  return h("div", { id: "run-head" },
    h("p", { class: "back" }, h("a", { href: "#" }, `← ${t("all runs")}`)),
    h("p", { class: "eyebrow" }, [t(row.kind), row.family, row.objective].filter(Boolean).join(" · ")),
    h("h1", {}, row.name, " ", badge(row.state)),
    message || document_.next || document_.try ? h("div", { class: "note" }, message ? h("div", { class: "message" }, message) : null, document_.next ? h("div", { class: "soft" }, t(document_.next)) : null, document_.command ? h("code", { class: "command" }, document_.command) : null, document_.try ? [h("div", { class: "soft" }, t("Try the model in a browser.")), h("code", { class: "command" }, document_.try)] : null) : null,
    row.unreadable ? h("p", { class: "note" }, `metrics.jsonl: ${row.unreadable} ${t("lines cannot be read")}`) : null,
    h("dl", { class: "tiles" }, tile(t("progress"), stepsOf(row)),
      tile(t("ETA"), duration(row.eta)), tile(t("loss"), number(row.loss)), tile(t("last validation"), number(row.valid)),
      tile(t("best validation"), row.best === null ? "" : `${number(row.best)}`),
      row.scores.slice(0, 4).map(([name, value]) => tile(name, number(value))),
      tile(t("tokens/s"), number(row.speed)), tile(t("tokens"), number(row.tokens)), tile(t("training time"), row.hours === null ? "" : duration(3600 * row.hours)), tile(t("memory"), row.memory === null ? "" : `${number(row.memory)} GB`), tile(t("waiting"), row.wait === null ? "" : `${(100 * row.wait).toFixed(1)} %`)));
}

function simpleTable(head, rows, numbers = true) {
  return h("div", { class: "panel scroll" }, h("table", {}, head ? h("thead", {}, h("tr", {}, head.map((name, at) => h("th", { class: at && numbers ? "number" : null }, t(name))))) : null,
    h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), rest.map((value) => h("td", { class: numbers ? "number" : "text" }, value instanceof Node ? value : number(value))))))));
}

function confusion({ labels, matrix }) {
  const cell = (count, total, truth, predicted) => {
    const td = h("td", { class: "number heat", title: `${truth} → ${predicted}: ${(100 * count / Math.max(total, 1)).toFixed(1)} %` }, number(count));
    td.style.background = `rgba(0,114,178,${(0.6 * count / Math.max(total, 1)).toFixed(3)})`;
    return td;
  };
  return h("div", { class: "panel scroll" }, h("h3", {}, t("Confusion: truth in rows, prediction in columns")), h("table", { class: "confusion" },
    h("thead", {}, h("tr", {}, h("th"), labels.map((label) => h("th", {}, label)))),
    h("tbody", {}, matrix.map((row, at) => { const total = row.reduce((a, b) => a + b, 0); return h("tr", {}, h("th", { scope: "row" }, labels[at]), row.map((count, to) => cell(count, total, labels[at], labels[to]))); }))));
}

function sample(item, kind) {
  const label = t(kind === "answers" ? "Right: " : "Original: ");
  if (kind !== "fill-mask") return h("div", { class: "sample" }, h("p", { class: "going" }, h("strong", {}, item.prompt), h("span", { class: "made" }, item.text)), item.answer ? h("p", { class: "going soft" }, label, item.answer) : null);
  const guesses = item.predictions.slice(0, 6).map(([token, share]) => {
    const bar = h("i"), right = isRight(token, item);
    bar.style.width = `${100 * (share ?? 0)}%`;
    return h("li", {}, h("span", { class: right ? "right" : null }, right ? `${token} ✓` : token), h("span", { class: "bar" }, bar), h("span", { class: "share" }, `${(100 * (share ?? 0)).toFixed(1)}%`));
  });
  return h("div", { class: "sample" }, h("p", {}, maskedText(item)), h("ol", { class: "guesses" }, guesses));
}

function maskedText(item) {
  const [before, ...after] = item.text.split(/\[MASK\]|<mask>/);
  return after.length ? [before, h("span", { class: "mask" }, item.answer || "[MASK]"), after.join("[MASK]")] : [item.text];
}

const isRight = (token, item) => token.trim().toLowerCase() === item.answer.trim().toLowerCase();

function inShort(item, filled) { // what the network made of a text, in one line
  if (!filled) return item.text.trim() ? h("span", { class: "made" }, item.text.trim()) : h("span", { class: "soft" }, "–");
  return h("span", {}, item.predictions.slice(0, 3).map(([token, share]) => h("span", { class: "guess" },
    isRight(token, item) ? h("span", { class: "right" }, `${token} ✓`) : token, h("span", { class: "soft" }, share === null ? "" : ` ${(100 * share).toFixed(1)}%`))));
}

function samplesOverTime(lines, open) { // for each text a table: a row for each of some validations
  const last = lines[lines.length - 1], filled = last.kind === "fill-mask", textOf = (item) => (filled ? item.text : item.prompt);
  return last.items.map((item, at) => folded(`samples-${at}`, filled ? maskedText(item) : item.prompt, open, [
    !filled && item.answer ? h("p", { class: "soft" }, t("Original: "), item.answer) : null, simpleTable(["step", filled ? "its guesses" : "its text"],
    lines.flatMap((line) => line.items.filter((own) => textOf(own) === textOf(item)).map((own) => [number(line.step), inShort(own, filled)])), false)]));
}

function folded(name, title, open, body) { return h("details", { "data-name": name, open: open.has(name) }, h("summary", {}, title), h("div", {}, body)); }

function runRest(document_, open) {
  const parts = [];
  if (document_.plan.length) parts.push(h("h2", {}, t("Plan and progress")), simpleTable(["", "planned", "so far"], document_.plan.map(([name, planned, far]) => [t(name), planned ?? "–", name === "training time" ? duration(far) : far])));
  for (const one of document_.evaluations) {
    if (!one.metrics.length && !one.settings?.length) continue;
    parts.push(h("h2", {}, `${t("Results")}: ${one.name}`));
    if (one.settings?.length) parts.push(simpleTable(one.setting_columns, one.settings));
    if (one.counted) parts.push(h("h3", {}, t("What counting gives, without a network")), simpleTable(one.counted_columns, one.counted));
    if (one.sentence) parts.push(h("p", { class: "note" }, one.sentence));
    const classes = [one.classes.length ? h("div", {}, h("h3", {}, t("By class")), simpleTable(["label", "precision", "recall", "F1", "support"], one.classes)) : null, one.confusion ? confusion(one.confusion) : null].filter(Boolean);
    if (classes.length) parts.push(h("div", { class: "columns" }, classes));
    if (one.metrics.length) parts.push(folded(`metrics-${one.name}`, `${t("metric")} (${one.metrics.length})`, classes.length ? open : new Set([`metrics-${one.name}`]), simpleTable(null, one.metrics.map(([name, value, error]) => [name, typeof value === "number" && error ? `${number(value)} ± ${number(error)}` : value]), true)));
  }
  const lines = document_.samples_by_step;
  if (lines.length > 1 || (lines.length && !document_.samples.items.length)) parts.push(h("h2", {}, t("Samples over the training")), ...samplesOverTime(lines, open));
  if (document_.samples.items.length) parts.push(h("h2", {}, t("What the model predicts")), h("div", { class: "panel" }, document_.samples.items.map((item) => sample(item, document_.samples.kind))));
  if (document_.pieces.length) {
    parts.push(h("h2", {}, t("Held-out text in tokens")), h("div", { class: "panel" }, document_.pieces.map((line) => h("p", { class: "pieces" }, line.map((piece, at) => h("span", { class: `token t${at % 3}` }, piece)), " ", h("span", { class: "soft small" }, `(${line.length})`)))));
  }
  if (document_.pages.length && !STATIC) parts.push(h("h2", {}, t("Pages")), h("p", {}, document_.pages.map((name) => [h("a", { href: `page?run=${document_.row.id}&name=${encodeURIComponent(name)}`, target: "_blank", rel: "noopener" }, name), "  "])));
  parts.push(h("h2", {}, t("Config")), folded("config", t("Config"), open, h("pre", {}, document_.config)));
  if (document_.environment.length) parts.push(folded("environment", t("Environment"), open, simpleTable(null, document_.environment, false)));
  if (document_.events.length) parts.push(folded("events", `${t("Events")} (${document_.events.length})`, open, simpleTable(null, document_.events.map(([time, name, rest]) => [time.replace("T", " ").slice(0, 19), name, rest]), false)));
  if (document_.checkpoints.length) parts.push(folded("checkpoints", `${t("Checkpoints")} (${document_.checkpoints.length})`, open, h("p", {}, document_.checkpoints.join("  "))));
  return h("div", { id: "run-rest" }, parts);
}

// --- Refreshing ---

function take(answer) {
  if (answer.version < state.version) state.rows.clear();
  Object.assign(state, { version: answer.version, ids: answer.ids, root: answer.root, reading: answer.reading, tooMany: answer.too_many, time: answer.time });
  offset = answer.time - Date.now() / 1000;
  const changed = new Set();
  for (const row of answer.rows) {
    const before = state.rows.get(row.id);
    row.drawn = before && before.step === row.step && before.valid_step === row.valid_step && before.loss === row.loss ? before.drawn : (before?.drawn ?? 0) + 1;
    state.rows.set(row.id, row);
    changed.add(row.id);
  }
  const there = new Set(answer.ids), gone = [...state.rows.keys()].filter((id) => !there.has(id));
  for (const id of gone) { state.rows.delete(id); curves.delete(id); settings.delete(id); }
  return [changed, gone.length > 0];
}

function firstChoice() {
  if (state.chosen !== null) return;
  const rows = [...state.rows.values()].filter((row) => row.curves), at = (row) => (row.state === "running" ? 1e12 : 0) + (row.kind === "pretrain" ? 1e11 : 0) + (row.updated ?? 0);
  rows.sort((one, two) => at(two) - at(one));
  const newest = rows[0], alike = (row) => row.kind === newest.kind && row.comparable === newest.comparable;
  state.chosen = newest ? rows.filter(alike).slice(0, 4).map((row) => row.id) : [];
}

async function refresh() {
  let answer;
  try {
    answer = STATIC ? STATIC.runs : await get(`api/runs?since=${state.version}`);
    state.connected = true;
  } catch {
    state.connected = false;
    drawLive();
    return;
  }
  const first = !state.version, [changed, gone] = take(answer);
  firstChoice();
  if (first) { drawPage(); return; }
  drawLive();
  if (state.page) { if (changed.has(state.page)) drawRun(false); return; }
  if (changed.size || gone) drawTable();
  if (state.chosen.some((id) => changed.has(id))) drawCurves();
}

addEventListener("hashchange", () => { const before = state.page; readHash(); if (state.page !== before) { drawPage(); scrollTo(0, 0); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCurves());
readHash();
refresh().then(() => {
  if (STATIC) return;
  let before = 0; // milliseconds of the last refresh
  const loop = async () => {
    const began = performance.now();
    if (!document.hidden) await refresh();
    const took = performance.now() - began;
    // A tenth of a core at most. One slow refresh, as on a machine that was busy, makes no long wait.
    setTimeout(loop, Math.max(state.reading ? 1000 : 2000, 10 * Math.min(took, before)));
    before = took;
  };
  setTimeout(loop, 1000);
});
})();
