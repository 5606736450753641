"use strict";
// Sorting, filtering and hiding on a screen. Without it the page is complete; on paper everything is shown.
(() => {
  const make = (tag, settings, ...content) => {
    const element = Object.assign(document.createElement(tag), settings);
    element.append(...content);
    return element;
  };
  const textOf = cell => cell ? cell.textContent.trim() : "";
  const number = text => {
    const found = text.replace(/,(?=\d{3})/g, "").replace("−", "-").match(/[-+]?\d+(\.\d+)?/);
    return found ? Number(found[0]) : null;
  };
  const compared = (a, b) => a.localeCompare(b, "en", { numeric: true });

  const sortable = table => {
    const body = table.tBodies[0], original = [...body.rows], headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      // no <button>: with one in it Chromium does not repeat a table's head on each page of paper
      const button = make("span", { className: "sort", tabIndex: 0 }, ...heading.childNodes);
      button.setAttribute("role", "button");
      heading.append(button);
      button.addEventListener("keydown", event => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        button.click();
      });
      button.addEventListener("click", () => {
        const before = heading.getAttribute("aria-sort");
        headings.forEach(other => other.removeAttribute("aria-sort"));
        if (before === "descending") return body.append(...original);
        heading.setAttribute("aria-sort", before === "ascending" ? "descending" : "ascending");
        const sign = before === "ascending" ? -1 : 1, isNumber = heading.classList.contains("n");
        const keys = new Map(original.map(row => {
          const text = textOf(row.cells[column]);
          return [row, isNumber ? number(text) : text === "–" ? null : text];
        }));
        body.append(...original.slice().sort((a, b) => {
          const [x, y] = [keys.get(a), keys.get(b)];
          if (x === null || y === null) return (x === null) - (y === null); // what is not known stands last
          return sign * (isNumber ? x - y : compared(x, y));
        }));
      });
    });
  };

  const filterable = (table, scroll) => {
    const rows = [...table.tBodies[0].rows], told = make("span", { className: "told" });
    const all = `${rows.length} rows`;
    told.setAttribute("role", "status");
    const input = make("input", { type: "search" });
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = [...row.cells].map(textOf).join(" ").toLowerCase();
        const kept = words.every(word => text.includes(word));
        row.classList.toggle("filtered", !kept);
        shown += kept;
      }
      told.textContent = words.length ? `${shown} of ${rows.length} rows` : all;
    });
    told.textContent = all;
    scroll.before(make("p", { className: "filter on-screen" }, make("label", {}, "Filter rows: ", input), " ", told));
  };

  const tables = [...document.querySelectorAll("table")].filter(table => table.tHead && !table.closest(".on-paper"));
  for (const table of tables) {
    const scroll = table.closest(".scroll");
    if (!scroll) continue;
    if (table.tBodies[0].rows.length > 2) sortable(table);
    if (table.tBodies[0].rows.length > 12) filterable(table, scroll);
    if (scroll.scrollWidth > scroll.clientWidth || scroll.scrollHeight > scroll.clientHeight) {
      scroll.tabIndex = 0; // so that arrow keys scroll it
      scroll.setAttribute("role", "region");
      scroll.setAttribute("aria-label", textOf(scroll.parentElement.querySelector("figcaption b")) || "Table");
    }
  }

  const choice = document.getElementById("choice");
  if (!choice) return;
  const hidden = { arm: new Set(), hospital: new Set() };
  const KINDS = { arm: "arm", site: "hospital", hospital: "hospital" };
  // a heading may say more than the name: "hospital-01, %", "SD, hospital-01"
  const isNamed = text => [...hidden.arm, ...hidden.hospital].some(name => text === name
    || text.endsWith(`, ${name}`) || text.startsWith(`${name}, `));
  const told = make("p", { className: "told meta" });
  told.setAttribute("role", "status");

  const apply = () => {
    for (const table of tables) {
      const headings = [...table.tHead.rows[0].cells];
      const kinds = headings.map(heading => KINDS[textOf(heading)]);
      const columns = headings.map((heading, place) => place > 0 && isNamed(textOf(heading)));
      for (const row of [table.tHead.rows[0], ...table.tBodies[0].rows]) {
        [...row.cells].forEach((cell, place) => cell.classList.toggle("away", columns[place]));
        if (row.parentElement === table.tHead) continue;
        const first = textOf(row.cells[0]);
        const named = [...row.cells].some((cell, place) => kinds[place] && hidden[kinds[place]].has(textOf(cell)));
        const turned = !kinds[0] && isNamed(first);
        row.classList.toggle("away", named || turned);
      }
    }
    for (const page of document.querySelectorAll("details.hospital")) {
      page.classList.toggle("away", hidden.hospital.has(textOf(page.querySelector("summary b"))));
    }
    const parts = Object.entries(hidden).filter(([, names]) => names.size)
      .map(([kind, names]) => `${names.size} ${kind}${names.size > 1 ? "s" : ""} (${[...names].join(", ")})`);
    told.textContent = parts.length ? `Hidden in tables and pages: ${parts.join("; ")}. Figures and sentences still `
      + "tell of all, and printing shows everything." : "";
  };

  const chooser = (kind, names) => {
    const boxes = names.map(name => {
      const box = make("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => {
        hidden[kind][box.checked ? "delete" : "add"](name);
        apply();
      });
      return make("label", {}, box, ` ${name}`);
    });
    const all = checked => make("button", { type: "button", onclick: () => {
      hidden[kind] = new Set(checked ? [] : names);
      boxes.forEach(label => { label.firstChild.checked = checked; });
      apply();
    } }, checked ? "All" : "None");
    return make("fieldset", {}, make("legend", {}, `Show ${kind}s `, all(true), " ", all(false)),
      make("div", { className: "boxes" }, ...boxes));
  };
  const lists = { arm: JSON.parse(choice.dataset.arms), hospital: JSON.parse(choice.dataset.hospitals) };
  const choosers = Object.entries(lists).filter(([, names]) => names.length > 1).map(list => chooser(...list));
  if (!choosers.length) return;
  choice.append(make("details", {}, make("summary", {}, "Show or hide arms and hospitals"), ...choosers), told);
  choice.hidden = false;
})();
