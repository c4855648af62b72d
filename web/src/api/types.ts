/** The parts of the API's answers that the page reads; `/openapi.json` describes all of them. */

export type ModelCard = {
  id: string;
  max_model_len?: number;
  /** Of an adapter: its model. */
  parent?: string | null;
  /** Only of a server of several models. */
  status?: { value: string; detail?: string | null; memory_bytes?: number; pinned?: boolean };
};

/** The tokens of a cached prompt by the tier that had them. */
export type TierTokens = { device: number; host: number; disk: number; object: number };

export type Usage = {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number; cached_tokens_details?: TierTokens } | null;
  completion_tokens_details?: { accepted_prediction_tokens?: number; rejected_prediction_tokens?: number } | null;
};

export type TokenLogprob = { token: string; logprob: number; bytes: number[] | null };

export type ToolCallDelta = {
  index: number;
  id?: string | null;
  function?: { name?: string | null; arguments?: string | null } | null;
};

export type Chunk = {
  choices: {
    index: number;
    delta: { content?: string | null; reasoning_content?: string | null; tool_calls?: ToolCallDelta[] | null };
    logprobs?: { content?: (TokenLogprob & { top_logprobs?: TokenLogprob[] })[] | null } | null;
    finish_reason?: string | null;
  }[];
  usage?: Usage | null;
};

export type ChatMessage = {
  role: "system" | "user" | "assistant" | "tool";
  content: string | null;
  reasoning_content?: string;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
};

export type ChatRequest = { messages: ChatMessage[] } & Record<string, unknown>;
