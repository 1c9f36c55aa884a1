// The official Java client, told what to do by lines on its standard input, as support/judges.py says.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

public class Judge {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Deque<AutoCloseable> CLIENTS = new ArrayDeque<>();
    static final Map<String, MessageView> HELD = new HashMap<>();
    static ClientConfiguration configuration;
    static Producer producer;
    static SimpleConsumer simple;

    static synchronized void say(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) line.append(line.length() == 0 ? "" : "\t").append(field);
        System.out.println(line);
        System.out.flush();
    }

    static String bodyOf(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    static void received(MessageView message) {
        String properties = new TreeMap<>(message.getProperties()).entrySet().stream()
            .map(one -> one.getKey() + "=" + one.getValue()).collect(Collectors.joining(","));
        say("received", bodyOf(message), message.getMessageId(), message.getTag().orElse(""),
            String.join(",", new TreeSet<>(message.getKeys())), message.getDeliveryAttempt(),
            message.getDeliveryTimestamp().orElse(0L), System.currentTimeMillis(), properties);
    }

    static ConsumeResult consume(MessageView message) {
        received(message);
        String body = bodyOf(message);
        if (body.startsWith("slow")) {
            try {
                Thread.sleep((long) (Double.parseDouble(body.split(" ")[1]) * 1000));
            } catch (InterruptedException error) {
                return ConsumeResult.FAILURE;
            }
        }
        boolean fails = body.startsWith("fail") && message.getDeliveryAttempt() < 2;
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    static Map<String, FilterExpression> subscription(String topic, String tags) {
        return Collections.singletonMap(topic, new FilterExpression(tags, FilterExpressionType.TAG));
    }

    static void run(String[] args) throws Exception {
        switch (args[0]) {
            case "producer":
                String[] topics = java.util.Arrays.copyOfRange(args, 1, args.length);
                producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics).build();
                CLIENTS.push(producer);
                say("ready");
                break;
            case "send":
                MessageBuilder message = PROVIDER.newMessageBuilder().setTopic(args[1])
                    .setBody(args[2].getBytes(StandardCharsets.UTF_8));
                if (!args[3].isEmpty()) message.setDeliveryTimestamp(Long.parseLong(args[3]));
                if (!args[4].isEmpty()) message.setTag(args[4]);
                if (!args[5].isEmpty()) message.setKeys(args[5].split(","));
                if (!args[6].isEmpty()) message.addProperty(args[6], args[7]);
                SendReceipt receipt = producer.send(message.build());
                String handle = receipt.getRecallHandle();
                say("stored", receipt.getMessageId(), handle == null ? "" : handle);
                break;
            case "recall":
                say("recalled", producer.recallMessage(args[1], args[2]).getMessageId());
                break;
            case "push":
                CLIENTS.push(PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup(args[2]).setSubscriptionExpressions(subscription(args[1], args[3]))
                    .setMessageListener(Judge::consume).build());
                say("ready");
                break;
            case "simple":
                simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup(args[2]).setSubscriptionExpressions(subscription(args[1], args[3]))
                    .setAwaitDuration(Duration.ofSeconds(Long.parseLong(args[4]))).build();
                CLIENTS.push(simple);
                say("ready");
                break;
            case "receive":
                List<MessageView> found =
                    simple.receive(Integer.parseInt(args[1]), Duration.ofSeconds(Long.parseLong(args[2])));
                for (MessageView one : found) {
                    HELD.put(one.getMessageId().toString(), one);
                    received(one);
                }
                say("polled", found.size());
                break;
            case "ack":
                simple.ack(HELD.get(args[1]));
                say("acked");
                break;
            case "change":
                simple.changeInvisibleDuration(HELD.get(args[1]), Duration.ofSeconds(Long.parseLong(args[2])));
                say("changed");
                break;
            default:
                say("refused", "no command " + args[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        ClientConfigurationBuilder builder =
            ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(!args[4].isEmpty());
        if (!args[1].isEmpty()) {
            builder.setCredentialProvider(args[3].isEmpty()
                ? new StaticSessionCredentialsProvider(args[1], args[2])
                : new StaticSessionCredentialsProvider(args[1], args[2], args[3]));
        }
        configuration = builder.build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                run(line.split("\t", -1));
            } catch (Exception error) {
                say("refused", error.toString().replace('\n', ' ').replace('\t', ' '));
            }
        }
        while (!CLIENTS.isEmpty()) CLIENTS.pop().close();
        say("ended");
        System.exit(0);
    }
}
