// What the pages of plmctl share: elements whose text is only ever text, and the language.
"use strict";
window.plmctl = (() => {
  const saved = (() => { try { return window.localStorage; } catch { return null; } })();
  let chosen = saved?.getItem("plmctl-language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");

  function h(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (key === "class") element.className = value;
      else if (key === "checked" || key === "selected") element[key] = true;
      else if (key === "value") element.value = value;
      else element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
    return element;
  }

  const language = () => chosen;
  const languageButton = (draw) => h("button", { id: "language", onclick: () => {
    chosen = chosen === "zh" ? "en" : "zh";
    saved?.setItem("plmctl-language", chosen);
    draw();
  } }, chosen === "zh" ? "English" : "中文");
  return { h, language, languageButton };
})();
