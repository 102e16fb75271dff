// A worker in Go: the generated stubs and grpc, and nothing else. `worker HOST:PORT NAME`
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	store "tenure.dev/taskstore/v1"
)

const leaseMs = 5_000

type worker struct {
	leases store.LeaseServiceClient
	name   string
	id     string
}

func main() {
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	w := worker{leases: store.NewLeaseServiceClient(connection), name: os.Args[2], id: os.Args[2] + "-" + unique()} // new at each start
	for {
		if err := w.takeOne(); err != nil {
			// LEASE_LOST, or a store that is away. In both cases the task is no longer this worker's business.
			log.Print(err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (w *worker) takeOne() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := w.leases.LeaseTasks(ctx, &store.LeaseTasksRequest{
		RequestId: unique(), WorkerId: w.id, Workflows: []*store.WorkflowVersion{{Workflow: "shout", Version: 1}},
		Limit: 1, LeaseMs: leaseMs, WaitMs: 20_000,
	})
	if err != nil {
		return err
	}
	for _, task := range answer.Tasks {
		if err := w.withHeartbeats(task); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) withHeartbeats(task *store.LeasedTask) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(leaseMs / 3 * time.Millisecond):
			}
			beat, cancel := context.WithTimeout(ctx, leaseMs/3*time.Millisecond)
			_, err := w.leases.HeartbeatTask(beat, &store.HeartbeatTaskRequest{Lease: task.Lease, LeaseMs: leaseMs})
			cancel()
			if err != nil {
				stop() // the lease is lost, or may be: the run ends
			}
		}
	}()
	return w.run(ctx, task)
}

func (w *worker) run(ctx context.Context, task *store.LeasedTask) error {
	if task.CancelRequested {
		_, err := w.leases.ConfirmCancel(ctx, &store.ConfirmCancelRequest{Lease: task.Lease})
		return err
	}
	var input struct {
		Words   []string `json:"words"`
		PauseMs int      `json:"pause_ms"`
	}
	if err := json.Unmarshal(task.Input.Data, &input); err != nil {
		return err
	}
	var done []string
	if task.Checkpoints > 0 { // what is done is not done again
		loaded, err := w.leases.LoadCheckpoints(ctx, &store.LoadCheckpointsRequest{Lease: task.Lease})
		if err != nil {
			return err
		}
		for _, one := range loaded.Checkpoints {
			var word string
			if err := json.Unmarshal(one.Payload.Data, &word); err != nil {
				return err
			}
			done = append(done, word)
		}
	}
	for revision := len(done); revision < len(input.Words); revision++ {
		select { // the work
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(input.PauseMs) * time.Millisecond):
		}
		word := strings.ToUpper(input.Words[revision]) + " by " + w.name
		_, err := w.leases.AppendCheckpoint(ctx, &store.AppendCheckpointRequest{
			Lease: task.Lease, Revision: int32(revision), Step: fmt.Sprintf("shout %d", revision), Payload: payload(word),
		})
		if err != nil {
			return err
		}
		done = append(done, word)
	}
	text := map[string]string{"type": "text", "text": strings.Join(done, ", ")}
	result := payload(map[string]any{"content": []any{text}})
	_, err := w.leases.CompleteTask(ctx, &store.CompleteTaskRequest{Lease: task.Lease, Result: result})
	return err
}

func payload(value any) *store.Payload {
	data, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	return &store.Payload{MediaType: "application/json", Data: data}
}

func unique() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		log.Fatal(err)
	}
	return fmt.Sprintf("%x", bytes)
}
