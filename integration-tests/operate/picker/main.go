// Reads a server as endpoint pickers do, with their own packages: the metrics scraper of the Gateway API Inference
// Extension, and the event subscriber, index and prefix scorer of llm-d.
//
//	picker metrics HOST:PORT                        prints what a picker knows of the server after one scrape
//	picker score tcp://HOST:PORT MODEL BLOCK_SIZE   subscribes, and answers each line {"tokens": [...], "salt": "..."}
//	                                                of its input with the blocks of that prompt that each pod has
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents/engineadapter"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	extractor "sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/datalayer/extractor/metrics"
	source "sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/datalayer/source/metrics"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "metrics":
		return printMetrics(args[1])
	case len(args) == 4 && args[0] == "score":
		blockSize, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return answerScores(args[1], args[2], blockSize)
	}
	return fmt.Errorf("the arguments are %q; see the comment at the top of main.go", args)
}

func printMetrics(address string) error {
	answer, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return err
	}
	// The factory's defaults are the names of vLLM's metrics.
	plugin, err := extractor.CoreMetricsExtractorFactory("extractor", nil, nil)
	if err != nil {
		return err
	}
	endpoint := datalayer.NewEndpoint(&datalayer.EndpointMetadata{}, nil)
	extract := plugin.(*extractor.Extractor).Extract
	if err := extract(context.Background(), source.PrometheusMetricMap(families), endpoint); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(endpoint.GetMetrics())
}

type prompt struct {
	Tokens []uint32 `json:"tokens"`
	Salt   string   `json:"salt"`
}

func answerScores(endpoint, servedModel string, blockSize int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	index, err := kvblock.NewInMemoryIndex(nil)
	if err != nil {
		return err
	}
	hasher, err := kvblock.NewChunkedTokenDatabase(&kvblock.TokenProcessorConfig{BlockSizeTokens: blockSize})
	if err != nil {
		return err
	}
	scorer, err := kvcache.NewKVBlockScorer(kvcache.DefaultKVBlockScorerConfig())
	if err != nil {
		return err
	}
	pool := kvevents.NewPool(nil, index, hasher, engineadapter.NewVLLMAdapter())
	pool.Start(ctx)
	if err := kvevents.NewSubscriberManager(pool).EnsureSubscriber(ctx, "server", endpoint, "kv@", true); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked prompt
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		keys, err := hasher.TokensToKVBlockKeys(
			kvblock.EmptyBlockHash, asked.Tokens, servedModel, salted(asked.Salt, len(asked.Tokens)/blockSize))
		if err != nil {
			return err
		}
		pods, err := index.Lookup(ctx, keys, nil)
		if err != nil {
			return err
		}
		scores, err := scorer.Score(ctx, keys, pods)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(scores); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Llm-d's router names a request's salt in the first block. That module cannot be had from the proxy; its rule is
// foldCacheSalt in pkg/epp/framework/plugins/requestcontrol/dataproducer/preciseprefixcache/blockkeys.go.
func salted(salt string, numBlocks int) []*kvblock.BlockExtraFeatures {
	if salt == "" || numBlocks == 0 {
		return nil
	}
	features := make([]*kvblock.BlockExtraFeatures, numBlocks)
	features[0] = &kvblock.BlockExtraFeatures{MMHashes: []kvblock.MMHash{{Hash: salt}}}
	return features
}
