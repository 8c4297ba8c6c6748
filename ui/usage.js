/** The tenant's requests, tokens and costs, by agent and by day. */

import "./shared.js";
import { money, number } from "./format.js";
import { firstFailure, Resource } from "./resource.js";
import { fragment } from "./router.js";
import { html } from "lit-html";

/**
 * @typedef {object} Figures
 * @property {number} requests
 * @property {number} prompt_tokens
 * @property {number} completion_tokens
 * @property {number} total_tokens
 * @property {string} cost_usd a decimal number
 *
 * @typedef {{usage: (Figures & {key: string | null})[], total: Figures}} Report
 *
 * @typedef {{path: string, report: Resource<Report>}} Loading
 */

const PERIODS = [7, 30, 90];
const DAY_MS = 24 * 3600 * 1000;
const ROWS_STEP = 100;
const NONE = { requests: 0, prompt_tokens: 0, completion_tokens: 0, total_tokens: 0, cost_usd: "0" };

/**
 * @param {import("./app.js").App} app
 * @returns {import("./app.js").View}
 */
export function createUsage(app) {
  let days = PERIODS[0];
  let agent = "";
  let rows = ROWS_STEP;
  /** @type {string[]} */
  let dates = [];
  /** @type {Loading | null} */
  let byAgent = null;
  /** @type {Loading | null} */
  let byDay = null;

  /**
   * Read a report. If it is the one that is shown, its figures stay until the new ones arrive.
   * @param {Loading | null} shown
   * @param {string} query
   * @returns {Loading}
   */
  function read(shown, query) {
    const path = `v1/usage?${query}&from=${dates.at(-1)}&to=${dates[0]}`;
    let next = shown;
    if (next?.path !== path) {
      next?.report.close();
      const load = () => /** @type {Promise<Report>} */ (app.client.call(path));
      next = { path, report: new Resource(load, (error) => (app.refused(error), app.changed())) };
    }
    void next.report.load();
    return next;
  }

  /** @param {string[]} params */
  function open([period = "", name = ""]) {
    if (days !== Number(period)) rows = ROWS_STEP;
    days = PERIODS.includes(Number(period)) ? Number(period) : PERIODS[0];
    agent = name;
    dates = lastDays(days);
    byAgent = read(byAgent, "group_by=agent");
    byDay = read(byDay, agent ? `group_by=day&agent=${encodeURIComponent(agent)}` : "group_by=day");
  }

  function close() {
    byAgent?.report.close();
    byDay?.report.close();
  }

  /** @param {Report} report */
  function agentsTable({ usage, total }) {
    const shown = usage.toSorted(byCost).slice(0, rows);
    return html`${table(
        "Usage by agent",
        "Agent",
        shown.map((figures) => ({ name: figures.key === null ? html`<span class="quiet">without an agent</span>` : html`<bdi>${figures.key}</bdi>`, label: figures.key ?? "without an agent", figures })),
        total,
      )}
      ${usage.length > rows ? html`<button type="button" @click=${() => ((rows += ROWS_STEP), app.changed())}>Show ${Math.min(ROWS_STEP, usage.length - rows)} more of ${number(usage.length)} agents</button>` : ""}`;
  }

  /** @param {Report} report */
  function daysTable({ usage, total }) {
    const byKey = new Map(usage.map((figures) => [figures.key, figures]));
    return table(
      "Usage by day",
      "Day (UTC)",
      dates.map((date) => ({ name: date, label: date, figures: byKey.get(date) ?? NONE })),
      total,
    );
  }

  function filter() {
    const names = new Set((byAgent?.report.value?.usage ?? []).flatMap(({ key }) => (key === null ? [] : [key])));
    if (agent) names.add(agent);
    /** @param {Event} event */
    const choose = (event) => app.go(fragment("usage", String(days), /** @type {HTMLSelectElement} */ (event.currentTarget).value));
    return html`<label class="filter">Agent
      <select @change=${choose}>
        <option value="" .selected=${agent === ""}>All agents</option>
        ${[...names].sort().map((name) => html`<option value=${name} .selected=${name === agent}>${name}</option>`)}
      </select>
    </label>`;
  }

  function render() {
    return html`<div class="panel">
      <header class="panel-head"><h1>Usage</h1><button type="button" @click=${() => open([String(days), agent])}>Refresh</button></header>
      <p class="quiet">Calls of models of the whole tenant, from ${dates.at(-1)} to ${dates[0]} (UTC). A turn in which an agent uses tools has several.</p>
      ${firstFailure([byAgent, byDay].flatMap((one) => one?.report ?? []))}
      <nav class="periods" aria-label="Period">
        ${PERIODS.map((period) => html`<a href=${agent ? fragment("usage", String(period), agent) : fragment("usage", String(period))} aria-current=${period === days ? "true" : "false"}>${period} days</a>`)}
      </nav>
      <section aria-labelledby="by-agent">
        <h2 id="by-agent">By agent</h2>
        ${byAgent?.report.show(agentsTable, { isQuiet: true, empty: ({ usage }) => (usage.length ? null : html`<p class="state">No calls in this period.</p>`) })}
      </section>
      <section aria-labelledby="by-day">
        <h2 id="by-day">By day</h2>
        ${filter()} ${byDay?.report.show(daysTable, { isQuiet: true })}
      </section>
    </div>`;
  }

  return { open, close, render };
}

/**
 * @param {string} caption
 * @param {string} heading
 * @param {{name: import("./resource.js").Content, label: string, figures: Figures}[]} rows
 * @param {Figures} total
 */
function table(caption, heading, rows, total) {
  const most = Math.max(1, ...rows.map(({ figures }) => figures.total_tokens));
  return html`<div class="wide" role="region" aria-label=${caption} tabindex="0">
    <table class="full">
      <caption class="unseen">${caption}</caption>
      <thead>
        <tr>
          <th scope="col">${heading}</th><th scope="col" class="figure">Requests</th><th scope="col" class="figure">Cost</th>
          <th scope="col" class="figure">All tokens</th><th scope="col"><span class="unseen">Share</span></th><th scope="col" class="figure">Prompt tokens</th>
          <th scope="col" class="figure">Answer tokens</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          ({ name, label, figures }) => html`<tr>
            <th scope="row">${name}</th>
            ${cells(figures, html`<meter aria-label=${`Tokens of ${label}`} min="0" max=${most} .value=${figures.total_tokens}></meter>`)}
          </tr>`,
        )}
      </tbody>
      <tfoot><tr><th scope="row">Total</th>${cells(total, "")}</tr></tfoot>
    </table>
  </div>`;
}

/**
 * @param {Figures} figures
 * @param {import("./resource.js").Content} bar
 */
function cells(figures, bar) {
  return html`<td class="figure">${number(figures.requests)}</td><td class="figure">${money(figures.cost_usd)}</td>
    <td class="figure">${number(figures.total_tokens)}</td><td>${bar}</td>
    <td class="figure">${number(figures.prompt_tokens)}</td><td class="figure">${number(figures.completion_tokens)}</td>`;
}

/**
 * Put the larger cost first, and of equal ones that with more tokens.
 * @param {Figures} one
 * @param {Figures} other
 */
function byCost(one, other) {
  return Number(other.cost_usd) - Number(one.cost_usd) || other.total_tokens - one.total_tokens;
}

/**
 * Return the last days in UTC, today first, e.g. `2026-11-30`.
 * @param {number} number
 */
function lastDays(number) {
  const now = Date.now();
  return Array.from({ length: number }, (_, back) => new Date(now - back * DAY_MS).toISOString().slice(0, 10));
}
