// A worker in Java: the generated stubs and grpc, and nothing else. `java Worker HOST:PORT NAME`
import com.google.protobuf.ByteString;
import dev.tenure.taskstore.v1.*;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

final class Worker {
    private static final long LEASE_MS = 5_000;
    private final LeaseServiceGrpc.LeaseServiceBlockingStub leases;
    private final String name;
    private final String id;
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();

    private Worker(String store, String name) {
        this.leases = LeaseServiceGrpc.newBlockingStub(ManagedChannelBuilder.forTarget(store).usePlaintext().build());
        this.name = name;
        this.id = name + "-" + UUID.randomUUID(); // new at each start
    }

    public static void main(String[] arguments) throws InterruptedException {
        var worker = new Worker(arguments[0], arguments[1]);
        while (true) {
            try {
                worker.takeOne();
            } catch (StatusRuntimeException | IllegalStateException error) {
                // LEASE_LOST, or a store that is away. In both cases the task is no longer this worker's business.
                System.err.println(error.getMessage());
                Thread.sleep(100);
            }
        }
    }

    private void takeOne() throws InterruptedException {
        var request = LeaseTasksRequest.newBuilder()
            .setRequestId(UUID.randomUUID().toString())
            .setWorkerId(id)
            .addWorkflows(WorkflowVersion.newBuilder().setWorkflow("shout").setVersion(1))
            .setLimit(1)
            .setLeaseMs(LEASE_MS)
            .setWaitMs(20_000)
            .build();
        for (var task : leases.withDeadlineAfter(30, TimeUnit.SECONDS).leaseTasks(request).getTasksList()) {
            withHeartbeats(task);
        }
    }

    private void withHeartbeats(LeasedTask task) throws InterruptedException {
        var lost = new CompletableFuture<Void>();
        var beats = timer.scheduleAtFixedRate(() -> {
            try {
                leases.withDeadlineAfter(LEASE_MS / 3, TimeUnit.MILLISECONDS).heartbeatTask(
                    HeartbeatTaskRequest.newBuilder().setLease(task.getLease()).setLeaseMs(LEASE_MS).build());
            } catch (StatusRuntimeException error) {
                lost.completeExceptionally(error); // the lease is lost, or may be: the run ends
            }
        }, LEASE_MS / 3, LEASE_MS / 3, TimeUnit.MILLISECONDS);
        try {
            run(task, lost);
        } finally {
            beats.cancel(false);
        }
    }

    private void run(LeasedTask task, CompletableFuture<Void> lost) throws InterruptedException {
        var lease = task.getLease();
        if (task.getCancelRequested()) {
            leases.confirmCancel(ConfirmCancelRequest.newBuilder().setLease(lease).build());
            return;
        }
        var input = task.getInput().getData().toStringUtf8();
        var words = strings(field(input, "words", "\\[(.*?)\\]"));
        var pauseMs = Long.parseLong(field(input, "pause_ms", "(\\d+)"));
        List<String> done = new ArrayList<>();
        if (task.getCheckpoints() > 0) { // what is done is not done again
            var loaded = leases.loadCheckpoints(LoadCheckpointsRequest.newBuilder().setLease(lease).build());
            loaded.getCheckpointsList().forEach(one -> done.addAll(strings(one.getPayload().getData().toStringUtf8())));
        }
        for (int revision = done.size(); revision < words.size(); revision++) {
            Thread.sleep(pauseMs); // the work
            if (lost.isCompletedExceptionally()) {
                throw new IllegalStateException("the lease is lost");
            }
            var word = words.get(revision).toUpperCase(Locale.ROOT) + " by " + name;
            leases.appendCheckpoint(AppendCheckpointRequest.newBuilder()
                .setLease(lease).setRevision(revision).setStep("shout " + revision).setPayload(payload("\"" + word + "\"")).build());
            done.add(word);
        }
        var result = "{\"content\": [{\"type\": \"text\", \"text\": \"" + String.join(", ", done) + "\"}]}";
        leases.completeTask(CompleteTaskRequest.newBuilder().setLease(lease).setResult(payload(result)).build());
    }

    // Enough JSON for this example; an application takes the library that it has.
    private static String field(String json, String name, String pattern) {
        Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*" + pattern).matcher(json);
        if (!found.find()) {
            throw new IllegalStateException("the input has no " + name);
        }
        return found.group(1);
    }

    private static List<String> strings(String json) {
        return Pattern.compile("\"([^\"\\\\]*)\"").matcher(json).results().map(one -> one.group(1)).toList();
    }

    private static Payload payload(String json) {
        return Payload.newBuilder().setMediaType("application/json").setData(ByteString.copyFromUtf8(json)).build();
    }
}
