"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;

  // The theme: what the system asks for, until somebody chooses another.
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const choices = ["auto", "light", "dark"];
  let choice = "auto";
  const show = () => {
    const isDark = choice === "dark" || (choice === "auto" && dark.matches);
    root.dataset.theme = isDark ? "dark" : "light";
    button.textContent = `Theme: ${choice}`;
  };
  button.addEventListener("click", () => {
    choice = choices[(choices.indexOf(choice) + 1) % choices.length];
    show();
  });
  dark.addEventListener("change", show);
  show();

  // Tables: a click on a head sorts, the second one the other way.
  const orderOf = (cell) =>
    cell.dataset.order === undefined ? undefined : Number(cell.dataset.order);
  const compare = (a, b, sign) => {
    const [x, y] = [orderOf(a), orderOf(b)];
    if (x !== undefined && y !== undefined) return sign * (x - y);
    // What has no number is last, whichever way.
    if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
    return sign * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
  };
  const sort = (table, head) => {
    const column = head.cellIndex;
    const numeric = head.classList.contains("number");
    const was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numeric;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], down ? -1 : 1));
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(table, head));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          sort(table, head);
        }
      });
    }
  }
  for (const input of document.querySelectorAll("input[data-filters]")) {
    const table = document.getElementById(input.dataset.filters);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }

  // A list's candidates.
  const dialog = document.getElementById("list");
  const set = (id, text) => { document.getElementById(id).textContent = text; };
  const cell = (text, style) => {
    const made = document.createElement("td");
    made.textContent = text;
    made.className = style;
    return made;
  };
  const open = (name) => {
    const [bundle, number] = name.split(".");
    const list = data[bundle].lists[number];
    set("list-name", list.name);
    set("list-about", list.about);
    set("list-more", list.more ? `${list.more} more are in the bundle.` : "");
    const rows = list.rows.map(([backend, style, template, config, time, noise, over, state], place) => {
      const row = document.createElement("tr");
      if (state.startsWith("won")) row.className = "won";
      const tag = document.createElement("span");
      tag.className = `tag b-${style}`;
      tag.textContent = backend;
      const whose = cell("", "");
      whose.append(tag);
      row.append(
        cell(place + 1, "number"), whose, cell(template, ""), cell(time, "number"),
        cell(noise, "number"), cell(over, "number"), cell(state, "wide"), cell(config, "config"),
      );
      return row;
    });
    document.getElementById("list-rows").replaceChildren(...rows);
    hideTip();
    dialog.showModal();
    dialog.scrollTop = 0;
  };
  document.addEventListener("click", (event) => {
    const found = event.target.closest("[data-list]");
    if (found) open(found.dataset.list);
    else if (event.target === dialog) dialog.close();
  });

  // What a mark stands for.
  const tip = document.getElementById("tip");
  const hideTip = () => { tip.hidden = true; };
  const say = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 18 + box.height < innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - box.height - 12}px`;
  };
  document.addEventListener("pointermove", (event) => {
    const found = event.target.closest("[data-tip]");
    if (found) say(found.dataset.tip, event);
    else if (!event.target.closest(".points")) hideTip();
  });
  document.addEventListener("scroll", hideTip, true);

  // The roofline has too many dots for an element each: the nearest one answers.
  for (const chart of document.querySelectorAll("svg.points")) {
    const { dots, lists } = data[chart.dataset.bundle];
    const cursor = chart.querySelector(".cursor");
    const nearest = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY)
        .matrixTransform(chart.getScreenCTM().inverse());
      let best, least = 14 ** 2;
      for (const dot of dots) {
        const far = (dot[0] - at.x) ** 2 + (dot[1] - at.y) ** 2;
        if (far < least) [best, least] = [dot, far];
      }
      return best;
    };
    chart.addEventListener("pointermove", (event) => {
      const dot = nearest(event);
      cursor.toggleAttribute("hidden", !dot);
      if (!dot) return hideTip();
      const row = lists[dot[2]].rows[dot[3]];
      cursor.setAttribute("cx", dot[0]);
      cursor.setAttribute("cy", dot[1]);
      const state = row && row[7] ? `, ${row[7]}` : "";
      say(row ? `${lists[dot[2]].name}: ${row[0]} ${row[2]}, ${row[4]}${state}` : lists[dot[2]].name, event);
    });
    chart.addEventListener("pointerleave", () => {
      cursor.setAttribute("hidden", "");
      hideTip();
    });
    chart.addEventListener("click", (event) => {
      const dot = nearest(event);
      if (dot) open(`${chart.dataset.bundle}.${dot[2]}`);
    });
  }
})();
