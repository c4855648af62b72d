import { pathOf } from "../../history/tree";
import { conversation } from "./conversations";
import { chosenModel } from "./model";

/** How much of the model's context the conversation takes, as counted by the last answer. */
export function ContextGauge() {
  const most = chosenModel.value?.max_model_len;
  const stats = pathOf(conversation.value).findLast((turn) => turn.stats)?.stats;
  if (!most || !stats) return null;
  const used = stats.promptTokens + stats.outputTokens;
  const share = Math.min(1, used / most);
  const around = 2 * Math.PI * 7;
  const text = `${Math.round(used).toLocaleString("en")} of ${most.toLocaleString("en")} tokens of the context are used`;
  return (
    <span class={`gauge ${share > 0.9 ? "full" : ""}`} title={text}>
      <svg viewBox="0 0 18 18" width="18" height="18" role="img" aria-label={text}>
        <circle cx="9" cy="9" r="7" class="gauge-all" />
        <circle cx="9" cy="9" r="7" class="gauge-used" stroke-dasharray={`${around * share} ${around}`} />
      </svg>
      <span aria-hidden="true">{share < 0.01 ? "< 1" : Math.round(share * 100)} %</span>
    </span>
  );
}
