package volume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAllowed(t *testing.T) {
	labels := map[string]string{"zone": "a", "rack": "1"}
	term := func(pairs ...string) corev1.TopologySelectorTerm {
		var t corev1.TopologySelectorTerm
		for i := 0; i < len(pairs); i += 2 {
			t.MatchLabelExpressions = append(t.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{
				Key: pairs[i], Values: strings.Split(pairs[i+1], ","),
			})
		}
		return t
	}
	cases := map[string]struct {
		reason string
		terms  []corev1.TopologySelectorTerm
		want   bool
	}{
		"no term":     {"everywhere", nil, true},
		"empty term":  {"selects nothing", []corev1.TopologySelectorTerm{term()}, false},
		"one value":   {"the node's", []corev1.TopologySelectorTerm{term("zone", "a")}, true},
		"any value":   {"values are alternatives", []corev1.TopologySelectorTerm{term("zone", "b,a")}, true},
		"other value": {"not the node's", []corev1.TopologySelectorTerm{term("zone", "b")}, false},
		"all keys":    {"keys of a term must all hold", []corev1.TopologySelectorTerm{term("zone", "a", "rack", "2")}, false},
		"any term":    {"terms are alternatives", []corev1.TopologySelectorTerm{term("zone", "b"), term("rack", "1")}, true},
		"no label":    {"a label that the node lacks", []corev1.TopologySelectorTerm{term("disk", "ssd")}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Allowed(tc.terms, labels); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
		})
	}
}

func TestNumberOf(t *testing.T) {
	cases := map[string]struct {
		reason         string
		pool, count    string
		wantPool       string
		wantAllocation int64
	}{
		"both":      {"a numbered object", "u", "7", "u", 7},
		"none":      {"another driver's object", "", "", "", Unnumbered},
		"no count":  {"a pool alone orders nothing", "u", "", "", Unnumbered},
		"no pool":   {"a count alone orders nothing", "", "7", "", Unnumbered},
		"no number": {"what cannot be read is not there", "u", "x", "", Unnumbered},
		"negative":  {"a count never is below zero", "u", "-1", "", Unnumbered},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pool, n := NumberOf(map[string]string{AnnotationPool: tc.pool, AnnotationAllocation: tc.count})
			if pool != tc.wantPool || n != tc.wantAllocation {
				t.Errorf("%s: got %q, %d", tc.reason, pool, n)
			}
		})
	}
}
