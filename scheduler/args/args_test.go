package args

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

func TestDecode(t *testing.T) {
	defaults := Args{BindTimeoutSeconds: ptr.To[int64](600), AttachLimitGraceSeconds: ptr.To[int64](300), Shape: []ShapePoint{{0, 10}, {100, 0}}}
	with := func(change func(*Args)) Args {
		a := defaults
		change(&a)
		return a
	}
	cases := map[string]struct {
		in      string
		want    Args
		wantErr string
	}{
		"none":              {in: "", want: defaults},
		"empty":             {in: `{}`, want: defaults},
		"YAML":              {in: "bindTimeoutSeconds: 30", want: with(func(a *Args) { a.BindTimeoutSeconds = ptr.To[int64](30) })},
		"field twice":       {in: "bindTimeoutSeconds: 30\nbindTimeoutSeconds: 40", wantErr: "already set in map"},
		"timeout":           {in: `{"bindTimeoutSeconds": 30}`, want: with(func(a *Args) { a.BindTimeoutSeconds = ptr.To[int64](30) })},
		"no grace":          {in: `{"attachLimitGraceSeconds": 0}`, want: with(func(a *Args) { a.AttachLimitGraceSeconds = ptr.To[int64](0) })},
		"shape":             {in: `{"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}`, want: with(func(a *Args) { a.Shape = []ShapePoint{{0, 0}, {100, 10}} })},
		"shared":            {in: `{"sharedPools": [{"driver": "d", "parameter": "group"}, {"driver": "e"}]}`, want: with(func(a *Args) { a.SharedPools = []SharedPool{{"d", "group"}, {"e", ""}} })},
		"unknown":           {in: `{"bindTimeout": 30}`, wantErr: `unknown field "bindTimeout"`},
		"unknown below":     {in: `{"sharedPools": [{"driver": "d", "params": "x"}]}`, wantErr: `unknown field "sharedPools[0].params"`},
		"zero":              {in: `{"bindTimeoutSeconds": 0}`, wantErr: "bindTimeoutSeconds: Invalid value: 0: must be at least 1"},
		"beyond time":       {in: `{"bindTimeoutSeconds": 9300000000}`, wantErr: "bindTimeoutSeconds: Invalid value: 9300000000: must be at most"},
		"text":              {in: `{"bindTimeoutSeconds": "long"}`, wantErr: "bindTimeoutSeconds"},
		"long grace":        {in: `{"attachLimitGraceSeconds": 3601}`, wantErr: "attachLimitGraceSeconds: Invalid value: 3601: must be 0 to 3600"},
		"negative grace":    {in: `{"attachLimitGraceSeconds": -1}`, wantErr: "attachLimitGraceSeconds: Invalid value: -1"},
		"no points":         {in: `{"shape": []}`, wantErr: "shape: Required value: give at least one point"},
		"falling shape":     {in: `{"shape": [{"utilization": 50, "score": 1}, {"utilization": 50, "score": 2}]}`, wantErr: "shape[1].utilization: Invalid value: 50: must be above"},
		"utilization range": {in: `{"shape": [{"utilization": 101, "score": 1}]}`, wantErr: "shape[0].utilization: Invalid value: 101: must be 0 to 100"},
		"score range":       {in: `{"shape": [{"utilization": 1, "score": -1}]}`, wantErr: "shape[0].score: Invalid value: -1: must be 0 to 10"},
		"driver without":    {in: `{"sharedPools": [{"parameter": "x"}]}`, wantErr: "sharedPools[0].driver: Required value"},
		"driver twice":      {in: `{"sharedPools": [{"driver": "d"}, {"driver": "d"}]}`, wantErr: `sharedPools[1].driver: Duplicate value: "d"`},
		"several at once":   {in: `{"bindTimeoutSeconds": 0, "attachLimitGraceSeconds": -1}`, wantErr: "[bindTimeoutSeconds"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Decode([]byte(tc.in), 600)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
