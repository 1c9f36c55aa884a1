// One-message sends by some threads while a push consumer receives them, how late messages are that were due at set times,
// and a backlog that is drained.
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;

public class Bench {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final byte[] BODY = new byte[256];

    interface Send { void one(int number) throws Exception; }

    /** Messages a second. */
    static double timed(int messages, int threads, Send send) throws Exception {
        AtomicInteger next = new AtomicInteger();
        CountDownLatch ended = new CountDownLatch(threads);
        long begun = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                for (int at = next.getAndIncrement(); at < messages; at = next.getAndIncrement()) {
                    try {
                        send.one(at);
                    } catch (Exception error) {
                        System.err.println("send: " + error);
                        System.exit(1);
                    }
                }
                ended.countDown();
            }).start();
        }
        ended.await();
        return messages / ((System.nanoTime() - begun) / 1e9);
    }

    /** Of the server, in seconds: fields 14 and 15 of its stat, counted from behind its name. */
    static double processor(String[] args) throws Exception {
        String stat = new String(Files.readAllBytes(Paths.get("/proc/" + args[7] + "/stat")), StandardCharsets.US_ASCII);
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / Double.parseDouble(args[8]);
    }

    static AutoCloseable consumer(ClientConfiguration configuration, String topic, String group, int threads,
            Runnable came) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setConsumptionThreadCount(threads)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                came.run();
                return ConsumeResult.SUCCESS;
            }).build();
    }

    /** Sends while nobody receives, and then receives while nobody sends: the rates, and the server's time of each. */
    static String backlog(String[] args, ClientConfiguration configuration, Producer producer, int messages, int threads)
            throws Exception {
        String topic = args[6];
        Send send = number -> producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).build());
        int warm = Math.max(threads, messages / 5);
        AtomicInteger got = new AtomicInteger();
        CountDownLatch warmed = new CountDownLatch(warm), all = new CountDownLatch(messages);
        AutoCloseable first = consumer(configuration, topic, "bench-backlog", threads, warmed::countDown);
        Thread.sleep(5_000); // RocketMQ's new groups begin with what comes after their first poll
        timed(warm, threads, send);
        boolean knows = warmed.await(60, TimeUnit.SECONDS);
        first.close();
        double before = processor(args);
        double sent = timed(messages, threads, send);
        double sending = processor(args) - before;
        before = processor(args);
        long begun = System.nanoTime();
        AtomicLong last = new AtomicLong(begun);
        AutoCloseable second = consumer(configuration, topic, "bench-backlog", threads, () -> {
            last.set(System.nanoTime());
            got.incrementAndGet();
            all.countDown();
        });
        all.await(120, TimeUnit.SECONDS);
        double drained = got.get() / ((last.get() - begun) / 1e9), receiving = processor(args) - before;
        second.close();
        return String.format("\"sent_alone_per_s\": %.0f, \"node_us_a_send\": %.0f, \"drained_per_s\": %.0f, "
            + "\"node_us_a_receive\": %.0f, \"drained\": %d, \"drained_of\": %d, \"warmed\": %b", sent,
            sending * 1e6 / messages, drained, receiving * 1e6 / Math.max(1, got.get()), got.get(), messages, knows);
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Exception error) { // clients' threads would keep the process
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void run(String[] args) throws Exception {
        String topic = args[1];
        String delayed = args[2];
        int messages = Integer.parseInt(args[3]);
        int late = Integer.parseInt(args[4]);
        int threads = Integer.parseInt(args[5]);
        Arrays.fill(BODY, (byte) 'x');
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic, delayed, args[6]).build();
        AtomicInteger got = new AtomicInteger();
        AtomicLong last = new AtomicLong();
        Send now = number -> producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).build());
        int warm = messages / 5;
        CountDownLatch warmed = new CountDownLatch(warm), all = new CountDownLatch(warm + messages);
        double sent, received;
        AutoCloseable consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("bench").setConsumptionThreadCount(threads)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                last.set(System.nanoTime());
                got.incrementAndGet();
                warmed.countDown();
                all.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        Thread.sleep(5_000); // RocketMQ's new groups begin with what comes after their first poll
        timed(warm, threads, now);
        warmed.await(30, TimeUnit.SECONDS);
        int before = got.get();
        long begun = System.nanoTime();
        sent = timed(messages, threads, now);
        all.await(60, TimeUnit.SECONDS);
        received = (got.get() - before) / ((last.get() - begun) / 1e9);
        long[] lateness = new long[late];
        AtomicInteger at = new AtomicInteger();
        CountDownLatch lates = new CountDownLatch(late);
        AutoCloseable waiting = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("bench-late").setConsumptionThreadCount(threads)
            .setSubscriptionExpressions(Collections.singletonMap(delayed, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                long by = System.currentTimeMillis() - message.getDeliveryTimestamp().orElse(0L);
                int index = at.getAndIncrement();
                if (index < late) lateness[index] = by;
                lates.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        Thread.sleep(5_000);
        long from = System.currentTimeMillis() + 8_000;
        timed(late, threads, number -> producer.send(PROVIDER.newMessageBuilder().setTopic(delayed).setBody(BODY)
            .setDeliveryTimestamp(from + 15_000L * number / late).build()));
        lates.await(60, TimeUnit.SECONDS);
        consumer.close();
        waiting.close();
        String backlog = backlog(args, configuration, producer, messages, threads);
        int count = Math.min(at.get(), late);
        long[] sorted = Arrays.copyOf(lateness, count);
        Arrays.sort(sorted);
        System.out.printf("{\"sent_per_s\": %.0f, \"received_per_s\": %.0f, \"received\": %d, \"of\": %d, \"late\": %d, "
            + "\"late_of\": %d, \"late_p50_ms\": %d, \"late_p99_ms\": %d, \"earliest_ms\": %d, %s}%n", sent, received,
            got.get(), warm + messages, at.get(), late, count == 0 ? -1 : sorted[count / 2],
            count == 0 ? -1 : sorted[count * 99 / 100], count == 0 ? -1 : sorted[0], backlog);
        System.exit(0);
    }
}
