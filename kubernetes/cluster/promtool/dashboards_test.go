// SPDX-License-Identifier: Apache-2.0 OR MIT

package promtool

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// Grafana's own words in the expressions.
var words = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$instance", ".*")

// Promise P396 (operator): Every expression of both dashboards is one that Prometheus takes.
func TestEveryExpressionOfTheDashboardsParses(t *testing.T) {
	boards, err := filepath.Glob("../../../dist/grafana/*.json")
	if err != nil || len(boards) != 2 {
		t.Fatalf("%v %v", boards, err)
	}
	for _, path := range boards {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		seen := 0
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				seen++
				if _, err := parser.NewParser(parser.Options{}).ParseExpr(words.Replace(target.Expr)); err != nil {
					t.Errorf("%s: %s: %v", path, panel.Title, err)
				}
			}
		}
		if seen < 10 {
			t.Errorf("%s has %d expressions: this shows nothing", path, seen)
		}
	}
}
