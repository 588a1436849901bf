package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-storage/berth/scheduler/plugin"
)

// disagreement is an answer that the model does not give.
type disagreement struct {
	side string
	// what was asked: PreFilter, node, dry run, PreScore, writes; where is the node.
	what, where string
	model       []string
	said        string
}

func (d disagreement) String() string {
	return fmt.Sprintf("%s, %s %s\n  said:  %s\n  model: %s", d.side, d.what, d.where, d.said, strings.Join(d.model, "\n      or "))
}

// kindOf is a text without numbers and names, for counting.
func kindOf(text string) string {
	if rest, scored := strings.CutPrefix(text, "Success "); scored && rest != "panic" {
		return "Success, with a score"
	}
	return code(text)
}

// like reports whether it is the same fault, be it of another node.
func (d disagreement) like(o disagreement) bool {
	return d.side == o.side && d.what == o.what && code(d.said) == code(o.said) && slices.Equal(codes(d.model), codes(o.model))
}

// code is what a text says, without what it says it of.
func code(text string) string {
	head, _, _ := strings.Cut(text, ": ")
	return head
}

func codes(texts []string) []string {
	var out []string
	for _, t := range texts {
		out = append(out, code(t))
	}
	return slices.Compact(out)
}

// side is one of the two that are compared, and the differences with which the
// model has to answer as it does.
type side struct {
	name        string
	make        maker
	differences []plugin.Difference
}

func sides() []side {
	return []side{{"upstream", upstream, nil}, {"berth", berth, plugin.Differences()}}
}

// compare asks the sides the world's question, and returns what the model does
// not explain. count counts the answers that were compared, by kind.
func compare(ctx context.Context, w *world, sides []side, count map[string]int) ([]disagreement, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var rigs []*rig
	for _, s := range sides {
		r, err := newRig(ctx, w, s.make)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		rigs = append(rigs, r)
	}
	w = w.clone()
	agree(w, rigs)
	var out []disagreement
	for i, s := range sides {
		p := modelOf(w, s.differences...).answers()
		out = append(out, unexplained(s.name, p, rigs[i].ask(w, p.feasible()), count)...)
	}
	return out, nil
}

// feasible is a node that every choice passes, to bind on; empty for none.
func (p possible) feasible() string {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(p.nodes))) {
		if !slices.ContainsFunc(p.nodes[name], func(s string) bool { return !strings.HasPrefix(s, "Success") }) {
			return name
		}
	}
	return ""
}

func unexplained(name string, p possible, a answer, count map[string]int) []disagreement {
	var out []disagreement
	check := func(what, where string, model []string, said string) {
		count[what+": "+kindOf(said)]++
		if !slices.Contains(model, said) {
			out = append(out, disagreement{name, what, where, model, said})
		}
	}
	check("PreFilter", "", []string{p.pre}, a.pre)
	for _, node := range slices.Sorted(maps.Keys(a.nodes)) {
		check("node", node, p.nodes[node], a.nodes[node])
	}
	for _, node := range slices.Sorted(maps.Keys(a.dry)) {
		check("dry run", node, p.dry[node], a.dry[node])
	}
	check("PreScore", "", []string{p.preScore}, a.preScore)
	if a.node != "" {
		check("writes", a.node, p.writes[a.node], a.writes)
	}
	return out
}

// agree makes the world's reservations on all sides; one that a side refuses is
// none.
func agree(w *world, rigs []*rig) {
	for _, name := range slices.Sorted(maps.Keys(w.reserved)) {
		var undo []func()
		for _, r := range rigs {
			if back, ok := r.reserve(name, w.reserved[name]); ok {
				undo = append(undo, back)
			}
		}
		if len(undo) == len(rigs) {
			continue
		}
		for _, back := range undo {
			back()
		}
		delete(w.reserved, name)
	}
	for _, name := range slices.Sorted(maps.Keys(w.reserved)) {
		if !w.touched[name] {
			continue
		}
		c := w.claim(name).DeepCopy()
		c.Labels = map[string]string{"touched": "yes"}
		for _, r := range rigs {
			r.observe(w, r.put(c))
		}
	}
}
