// The page of `plmctl try`: what one or two models say to a text. Text of models and of people is
// only ever set as textContent. An answer comes as lines of JSON: pieces of text, then one last line.
"use strict";
(() => {
const { h, language, languageButton } = window.plmctl;

// --- Words ---

const ZH = {
  "Fill in": "填空", "Fill in spans": "填写片段", "Continue": "续写", "Write": "写出文本", classification: "分类", tagging: "标注", "question answering": "问答", "multiple choice": "选择题", "text to text": "文本生成",
  "Nearest uses of a word": "词的最近用法",
  "A text with [MASK] where a word is to be filled in": "一段文本，在要填词的位置写上 [MASK]",
  "A text with <extra_id_0>, <extra_id_1> ... where words are missing": "一段文本，在缺词的位置写上 <extra_id_0>、<extra_id_1> …",
  "The beginning of a text": "文本的开头", "A text": "文本", "A text to read": "模型要读的文本", "A word": "词", "A sentence with it (may be empty)": "含有该词的句子（可不填）",
  "one per line": "每行一个", "words with spaces between them": "词与词之间用空格分开",
  "Ask": "运行", "Again": "再来一次", "Stop": "停止", "Insert": "插入", "temperature": "温度", "top-p": "top-p", "new tokens": "新 token 数",
  "Temperature 0 always takes the most probable token.": "温度为 0 时总是取概率最大的 token。",
  "From held-out text": "来自留出文本", "From the validation rows": "来自验证数据", "The right answer: ": "正确答案：",
  "similarity": "余弦相似度", "the nearest uses": "最近的用法",
  "The same on the command line": "命令行上的同样结果", "no answer in the passage": "文中没有答案",
  "stopped": "已停止", "the model ended the text": "模型自己结束了文本", "the length was reached": "达到了长度上限", "tokens": "个 token",
  "This model gives vectors of words and writes no text: it shows the nearest uses of a word.": "这个模型给出词向量，不生成文本：这里可以看一个词最近的用法。",
  "This model cannot do this.": "这个模型做不到。", "Write a text first.": "请先输入文本。", "Write a word first.": "请先输入一个词。",
  "The text is too long for this page.": "文本太长，本页无法处理。", "No answer: is plmctl try still running?": "没有回应：plmctl try 还在运行吗？",
  "No examples: ": "没有示例：", "sentences were searched": "个句子中查找", "The first question loads the model ...": "第一次提问时要加载模型 …",
  question: "问题", context: "段落", passage: "段落", options: "选项", premise: "前提", hypothesis: "假设", nothing: "（空）",
};
const t = (text) => (language() === "zh" ? ZH[text] ?? text : text);

// What the commands say, for one text; in Chinese, too. What is not here stays as it is.
const SENTENCES = [
  [/^no (\S+) in [^]*$/, "There is no $1 in the text.", "文本里没有 $1。"],
  [/^put (\S+) where a word is to be filled in$/, "Put $1 where a word is to be filled in.", "在要填词的位置写上 $1。"],
  [/^put <extra_id_0> where words[^]*$/, "Put <extra_id_0> where words are missing, then <extra_id_1> and so on.", "在缺词的位置写上 <extra_id_0>，然后是 <extra_id_1>，依此类推。"],
  [/^1 of 1 texts were cut around their (\S+): .* reads, ([\d,]+) tokens$/, "The text is longer than the model reads: only $2 tokens around $1 were read.", "文本超出模型的长度：只读了 $1 周围的 $2 个 token。"],
  [/^1 of 1 texts were cut: the model was finetuned on ([\d,]+) tokens.*$/, "The text was cut: the model was finetuned on $1 tokens at most.", "文本被截断：模型微调时最多读 $1 个 token。"],
  [/^1 of 1 prompts were cut from the left: .* has (\d+) positions, (\d+) of them for new tokens$/, "The beginning of the text was cut: the model has $1 positions, $2 of them for new tokens.", "文本的开头被截掉：模型有 $1 个位置，其中 $2 个留给新 token。"],
  [/^([\d.]+) % of the characters of .* are unknown to the tokenizer .*?, such as ('[^]*?')(?:; [^]*)?$/, "$1 % of the characters are unknown to the tokenizer, such as $2.", "分词器不认识其中 $1% 的字符，例如 $2。"],
  [/^use a tokenizer that knows this text[^]*$/, "", ""],
  [/^(\d+) new tokens requested, but .* has (\d+) positions$/, "$1 new tokens are too many: the model has $2 positions.", "$1 个新 token 太多：模型只有 $2 个位置。"],
  [/^request at most (\d+): .*$/, "Choose $1 at most; the text needs positions, too.", "最多 $1 个；文本本身也需要位置。"],
  [/^the prompt is empty, and .*$/, "Write a text first.", "请先输入文本。"], [/^add a word to the prompt$/, "", ""],
  [/^the text is empty$/, "Write a text first.", "请先输入文本。"],
  [/^the model cannot do this$/, "This model cannot do this.", "这个模型做不到。"],
  [/^('[^]*') is in none of (\d+) sentences$/, "$1 is in none of $2 sentences.", "$2 个句子里都没有 $1。"],
  [/^check its spelling$/, "Check its spelling, or write a sentence with it.", "请检查拼写，或写一个含有它的句子。"],
  [/^there is no text to search$/, "There is no text to search.", "没有可供查找的文本。"],
  [/^name one: (plmctl try .*)$/, "Start the page with one: $1", "启动时指定一个：$1"],
  [/^nothing was written for the sentinels of [^]*$/, "The model wrote nothing for the missing words.", "模型没有为缺词的位置写出任何内容。"],
  [/^.*: requires (.*): (?:\d+ texts, not \d+|one text each)$/, "The model reads other texts than these: $1.", "模型需要的文本是：$1。"],
  [/^.*: requires (.*), then two options or more; texts: \d+$/, "The model reads $1, then two options or more.", "模型需要 $1，再加两个或更多选项。"],
  [/^give them in this order, or rows of a file: --input$/, "", ""],
];
function sentence(message) {
  for (const [pattern, english, chinese] of SENTENCES) if (pattern.test(message)) return message.replace(pattern, language() === "zh" ? chinese : english);
  return message;
}
const percent = (share) => `${(100 * share).toFixed(1)} %`;

// --- What is on the page ---

const WAYS = { masks: "Fill in", spans: "Fill in spans", continue: "Continue", task: "", neighbours: "Nearest uses of a word" };
const place = document.getElementById("try");
const state = {
  models: [], longest: 0, examples: [], way: "", texts: {}, top: 8, sampling: { temperature: 0.8, top_p: 0.9, max_new_tokens: 60 }, seed: 42,
  answers: [], // of each model: what came so far, of the way and the texts that were asked
  asked: null, stops: [],
};
const first = () => state.models.find((model) => model.ways.includes(state.way));

function titleOf(way, ways) {
  if (way === "task") return [...new Set(state.models.flatMap((model) => model.task ?? []))].map((task) => t(task.replaceAll("_", " "))).join(" / ");
  return t(way === "continue" && ways.includes("spans") ? "Write" : WAYS[way]);
}

function fieldsOf(way) { // [label, lines, hint] of each text
  if (way === "masks") return [[t("A text with [MASK] where a word is to be filled in").replace("[MASK]", first().mask), 3]];
  if (way === "spans") return [[t("A text with <extra_id_0>, <extra_id_1> ... where words are missing"), 3]];
  if (way === "continue") return [[t(first().ways.includes("spans") ? "A text to read" : "The beginning of a text"), 3]];
  if (way === "neighbours") return [[t("A word"), 0], [t("A sentence with it (may be empty)"), 0]];
  const { fields, takes_more: more } = first(), one = fields.length === 1;
  return fields.map((name, at) => [`${one ? t("A text") : t(name)}${more && at === fields.length - 1 ? ` (${t("one per line")})` : ""}`, one ? 4 : 2]);
}

function textsToAsk(model) { // the options are the lines of the last field; masks are those of the model
  const texts = fieldsOf(state.way).map((_, at) => state.texts[state.way]?.[at] ?? "");
  if (state.way === "task" && first().takes_more) return [...texts.slice(0, -1), ...texts.at(-1).split("\n").filter((line) => line.trim())];
  if (state.way === "masks" && model.mask) return texts.map((text) => text.replaceAll(first().mask, model.mask));
  return texts;
}

function draw() {
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  const ways = Object.keys(WAYS).filter((way) => state.models.some((model) => model.ways.includes(way)));
  if (!state.way) [state.way] = ways;
  place.className = state.models.length > 1 ? "two" : "";
  place.replaceChildren(...[
    h("header", { class: "top" }, h("h1", {}, "plmctl try"), h("span", { class: "live" }, languageButton(draw))),
    h("p", { class: "models" }, state.models.map((model) => h("span", {}, h("b", {}, model.name), " ", h("span", { class: "soft" }, [model.class, model.task].filter(Boolean).join(" · "))))),
    ways.length > 1 ? h("div", { class: "ways" }, ways.map((way) => h("button", { "aria-pressed": String(way === state.way), "data-way": way, onclick: () => { stop(); state.way = way; state.answers = []; draw(); } }, titleOf(way, ways)))) : null,
    ways.length === 1 && ways[0] === "neighbours" ? h("p", { class: "soft" }, t("This model gives vectors of words and writes no text: it shows the nearest uses of a word.")) : null,
    h("form", { onsubmit: (event) => { event.preventDefault(); ask(); } }, fieldsOf(state.way).map(field), tools()),
    h("section", { class: "answers", "aria-live": "polite" }),
    h("div", { id: "examples" })].filter(Boolean));
  drawAnswers();
  drawExamples();
}

function field([label, lines], at) {
  const attributes = { name: `text-${at}`, rows: lines || null, spellcheck: "false", autocomplete: "off", value: state.texts[state.way]?.[at] ?? "",
    oninput: (event) => { (state.texts[state.way] ??= [])[at] = event.target.value; },
    onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask(); } } };
  return h("label", { class: "field" }, label, h(lines ? "textarea" : "input", attributes));
}

function tools() {
  const slider = (key, title, min, max, step) => {
    const shown = h("output", {}, state.sampling[key]);
    const range = h("input", { type: "range", name: key, min, max, step, value: state.sampling[key], oninput: (event) => { state.sampling[key] = Number(event.target.value); shown.textContent = event.target.value; } });
    return h("label", key === "temperature" ? { title: t("Temperature 0 always takes the most probable token.") } : {}, t(title), range, shown);
  };
  const insert = { masks: first().mask, spans: "<extra_id_0>" }[state.way];
  return h("div", { class: "tools" },
    h("button", { class: "ask", type: "submit" }, t("Ask")),
    h("button", { type: "button", id: "stop", hidden: !state.stops.length, onclick: stop }, t("Stop")),
    insert ? h("button", { type: "button", id: "insert", onclick: () => insertAtCursor(insert) }, `${t("Insert")} ${insert}`) : null,
    state.way === "continue" ? [slider("temperature", "temperature", 0, 2, 0.1), slider("top_p", "top-p", 0.05, 1, 0.05), slider("max_new_tokens", "new tokens", 10, 300, 10),
      h("button", { type: "button", id: "again", onclick: () => { state.seed += 1; ask(); } }, t("Again"))] : null);
}

function insertAtCursor(token) { // sentinels are numbered in the order in which they are inserted
  const box = place.querySelector("textarea");
  const number = (box.value.match(/<extra_id_\d+>/g) ?? []).length;
  box.setRangeText(token.replace("_0>", `_${number}>`), box.selectionStart, box.selectionEnd, "end");
  (state.texts[state.way] ??= [])[0] = box.value;
  box.focus();
}

function drawExamples() {
  const area = document.getElementById("examples"), seen = new Set();
  const found = state.examples.flatMap((one) => one[state.way] ?? []).filter(({ texts }) => !seen.has(texts.join("\n")) && seen.add(texts.join("\n")));
  const wrong = state.examples.find((one) => one.error);
  area.replaceChildren(
    ...(found.length ? [h("h2", {}, t(state.way === "task" ? "From the validation rows" : "From held-out text")), h("ul", { class: "examples" }, found.map((one) => h("li", {}, h("button", { title: one.texts.join("\n"), onclick: () => choose(one) }, one.texts.join(" / ")))))] : []),
    ...(wrong && !found.length ? [h("p", { class: "soft small" }, t("No examples: "), wrong.error)] : []));
}

function choose({ texts }) {
  const count = fieldsOf(state.way).length;
  state.texts[state.way] = [...texts.slice(0, count - 1), texts.slice(count - 1).join("\n")];
  draw();
  scrollTo(0, 0);
  ask();
}

// --- Asking ---

function stop() { for (const one of state.stops) one.abort(); }

async function ask() {
  stop();
  const texts = fieldsOf(state.way).map((_, at) => state.texts[state.way]?.[at] ?? "");
  const needed = state.way === "neighbours" ? texts.slice(0, 1) : texts;
  const missing = !needed.every((text) => text.trim());
  const way = state.way, stops = state.models.map(() => new AbortController());
  state.asked = { way, texts: textsToAsk(first()).join("\n") };
  state.answers = state.models.map((model) => (
    !model.ways.includes(way) ? { error: "the model cannot do this" } :
    missing ? { error: t(way === "neighbours" ? "Write a word first." : "Write a text first.") } : { way, texts: textsToAsk(model), text: "", working: true }));
  if (!state.answers.some((one) => one.working)) { drawAnswers(); return; }
  state.stops = stops;
  document.getElementById("stop").hidden = false;
  drawAnswers();
  await Promise.all(state.answers.map((answer, model) => (answer.working ? askOne(model, answer, stops[model].signal) : null)));
  if (state.stops === stops) { state.stops = []; const button = document.getElementById("stop"); if (button) button.hidden = true; }
}

async function askOne(model, answer, signal) {
  const body = JSON.stringify({ model, way: answer.way, texts: answer.texts, top: state.top, seed: state.seed, ...state.sampling });
  try {
    if (new Blob([body]).size > state.longest) throw new RangeError("The text is too long for this page.");
    const response = await fetch("api/answer", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
    if (!response.ok) throw new RangeError((await response.text()).trim());
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", ended = false; !ended;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = lines.pop();
      for (const line of lines) { const part = JSON.parse(line); if ("text" in part) answer.text += part.text; else { Object.assign(answer, part, { whole: true }); state.loaded = true; } }
      ended = done;
      drawAnswers();
    }
    if (!answer.whole) throw new TypeError("cut off");
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else answer.error = t(error instanceof RangeError ? error.message : "No answer: is plmctl try still running?");
  }
  answer.working = false;
  drawAnswers();
}

// --- Answers ---

function drawAnswers() {
  const area = place.querySelector(".answers");
  area.classList.toggle("one", state.answers.filter((answer) => answer.way).length < 2);
  area.replaceChildren(...state.answers.map((answer, at) => h("div", { class: answer.way || state.models.length < 2 ? "panel" : "unable" },
    state.models.length > 1 ? h("h3", {}, state.models[at].name) : null,
    (answer.notes ?? []).map(sentence).filter(Boolean).map((note) => h("p", { class: "note" }, note)),
    answer.error ? h("p", { class: answer.way ? "error" : "soft" }, [answer.error, answer.hint].filter(Boolean).map(sentence).filter(Boolean).join(" ")) : null,
    answer.way && !answer.error ? shown(answer) : null,
    answer.stopped ? h("p", { class: "soft small" }, t("stopped")) : null,
    answer.answer ? [rightAnswer(), h("details", {}, h("summary", {}, t("The same on the command line")), h("code", { class: "command" }, answer.answer.command))] : null)));
}

function rightAnswer() {
  const of = state.examples.flatMap((one) => one[state.asked.way] ?? []).find((one) => one.right && one.texts.join("\n") === state.asked.texts);
  return of ? h("p", { class: "soft" }, t("The right answer: "), of.right) : null;
}

function shown({ way, texts, text, working, answer }) {
  if (way === "continue") return [h("p", { class: `answer${working ? " working" : ""}` }, texts[0], h("span", { class: "made" }, answer ? answer.text : text)),
    answer ? h("p", { class: "soft small" }, `${answer.tokens} ${t("tokens")} · ${t(answer.ended ? "the model ended the text" : "the length was reached")}`) : null];
  if (!answer) return working ? h("p", { class: "soft working" }, state.loaded ? "" : t("The first question loads the model ...")) : null;
  if (way === "masks") return masks(texts[0], answer.answers);
  if (way === "spans") return spans(texts[0], answer.answers);
  if (way === "neighbours") return neighbours(answer);
  const { task, answers } = answer;
  if (task.tokens) return tagged(task);
  if ("start" in task) return marked(texts[1], task);
  return answers.every((one) => typeof one.score === "number") ? bars(answers) : h("p", { class: "answer big" }, answers[0].token || t("nothing"));
}

function bars(answers) {
  const largest = Math.max(...answers.map((one) => one.score), 1e-9);
  return h("ol", { class: "bars" }, answers.map(({ token, score }) => {
    const bar = h("i");
    bar.style.width = `${100 * Math.min(1, largest <= 1 ? score : score / largest)}%`;
    return h("li", {}, h("span", { class: "name" }, token), h("span", { class: "bar" }, bar), h("span", { class: "number" }, percent(score)));
  }));
}

function masks(text, answers) {
  const mask = state.models[0].mask && text.includes(state.models[0].mask) ? state.models[0].mask : state.models.find((model) => model.mask && text.includes(model.mask)).mask;
  const groups = new Map();
  for (const one of answers) groups.set(one.mask ?? 1, [...(groups.get(one.mask ?? 1) ?? []), one]);
  const parts = text.split(mask).flatMap((part, at) => (at ? [h("mark", {}, (groups.get(at)?.[0].token ?? mask).trim()), part] : [part]));
  return [h("p", { class: "answer" }, parts), h("div", { class: "masks" }, [...groups].map(([number, ones]) => h("div", {}, groups.size > 1 ? h("h3", {}, `${mask} ${number}`) : null, bars(ones))))];
}

function spans(text, answers) {
  const fills = Object.fromEntries(answers.map((one) => [one.sentinel, one.token]));
  return h("p", { class: "answer" }, text.split(/(<extra_id_\d+>)/).map((part) => (part in fills ? h("mark", { title: part }, fills[part] || "–") : part)));
}

const HAN = /^[\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]/;
function tagged({ tokens, prediction, probabilities }) { // the words of an entity (B-, I- ...) in one piece
  const kind = (tag) => tag.replace(/^[BIESMLU]-/, ""), kinds = [...new Set(prediction.map(kind))].filter((name) => name !== "O");
  const pieces = [];
  tokens.forEach((word, at) => {
    const tag = prediction[at], last = pieces.at(-1), gap = at && !(HAN.test(word) && HAN.test(tokens[at - 1])) ? " " : "";
    if (last && /^[IEML]-/.test(tag) && kind(last.tag) === kind(tag)) Object.assign(last, { text: `${last.text}${gap}${word}`, sure: Math.min(last.sure, probabilities[at]) });
    else pieces.push({ gap, text: word, tag, sure: probabilities[at] });
  });
  return h("p", { class: "answer" }, pieces.map(({ gap, text, tag, sure }) => [gap, tag === "O" ? text :
    h("span", { class: `tag c${kinds.indexOf(kind(tag)) % 7}`, title: `${kind(tag)} · ${percent(sure)}` }, text, " ", h("small", {}, kind(tag)))]));
}

function withMark(text, start, part) { // the start counts characters, which JavaScript's strings do not
  const all = [...text], end = start + [...part].length;
  return [all.slice(0, start).join(""), h("mark", {}, all.slice(start, end).join("")), all.slice(end).join("")];
}

function marked(passage, { prediction, start, probability, n_best: best }) {
  const ranked = (best ?? []).slice(0, 4).map((one) => ({ token: one.text || t("no answer in the passage"), score: one.probability }));
  return [h("p", { class: "answer big" }, prediction || t("no answer in the passage"), " ", h("span", { class: "soft small" }, percent(probability))),
    h("p", { class: "answer" }, prediction && Number.isInteger(start) ? withMark(passage, start, prediction) : passage), ranked.length > 1 ? bars(ranked) : null];
}

function neighbours({ use, neighbours: found, sentences }) {
  const row = ({ sentence: text, start, word }) => withMark(text, start, word);
  return [h("p", { class: "answer" }, row(use)), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("the nearest uses")), h("th", { class: "number" }, t("similarity")))),
    h("tbody", {}, found.map((one) => h("tr", {}, h("td", {}, row(one)), h("td", { class: "number" }, one.similarity.toFixed(3))))))),
    h("p", { class: "soft small" }, `${sentences} ${t("sentences were searched")}`)];
}

// --- The start ---

async function start() {
  try {
    Object.assign(state, await (await fetch("api/models", { cache: "no-store" })).json());
    document.title = `${state.models.map((model) => model.name).join(" · ")} · plmctl try`;
    draw();
    place.querySelector("textarea, input").focus();
    state.examples = await (await fetch("api/examples", { cache: "no-store" })).json();
    drawExamples();
  } catch { place.replaceChildren(h("p", { class: "error" }, t("No answer: is plmctl try still running?"))); }
}
start();
})();
